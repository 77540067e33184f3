"""`tools/invalid_examples.py` applies patches, refuses wrong ones, and writes every invalid example as a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.contract_files import examples
from tools import invalid_examples as tool

VALID = {"list": [1, 2], "a/b": {"~": 0}}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/list/1", "value": 9}, {"list": [1, 9, 2], "a/b": {"~": 0}}),
        ({"op": "add", "path": "/new", "value": None}, {"list": [1, 2], "a/b": {"~": 0}, "new": None}),
        ({"op": "replace", "path": "/a~1b/~0", "value": 1}, {"list": [1, 2], "a/b": {"~": 1}}),
        ({"op": "replace", "path": "", "value": 7}, 7),
        ({"op": "remove", "path": "/list/0"}, {"list": [2], "a/b": {"~": 0}}),
    ],
)
def test_a_patch_changes_a_copy_by_rfc_6902(operation: Any, expected: Any) -> None:
    before = json.dumps(VALID)
    assert tool.patched(VALID, [operation]) == expected
    assert json.dumps(VALID) == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/gone", "value": 1},
        {"op": "remove", "path": "/gone"},
        {"op": "remove", "path": ""},
        {"op": "remove", "path": "/list/2"},
        {"op": "add", "path": "/gone/below", "value": 1},
        {"op": "break", "path": "/list"},
    ],
)
def test_a_patch_that_does_not_fit_is_an_error(operation: Any) -> None:
    with pytest.raises(LookupError):
        tool.patched(VALID, [operation])


def test_a_second_case_of_the_same_name_is_an_error(tmp_path: Path) -> None:
    case = '"a.type": {"from": "full", "patch": []}'
    (tmp_path / "invalid.json").write_text(f"{{{case}, {case}}}")
    with pytest.raises(ValueError, match=r"a\.type"):
        tool.invalid_examples(tmp_path)


def test_every_invalid_example_is_written_as_a_file(tmp_path: Path) -> None:
    subprocess.run([sys.executable, tool.__file__, tmp_path], check=True)
    written = {str(file.relative_to(tmp_path)): json.loads(file.read_text()) for file in tmp_path.rglob("*.json")}
    assert written == {f"{one.schema}/{one.name}.json": one.document for one in examples("invalid")}
