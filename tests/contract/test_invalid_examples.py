"""`tools/invalid_examples.py` writes every invalid example as a file, and refuses two of one name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.contract_files import examples
from tools import invalid_examples as tool


def test_a_second_case_of_the_same_name_is_an_error(tmp_path: Path) -> None:
    case = '"a.type": {"from": "full", "patch": []}'
    (tmp_path / "invalid.json").write_text(f"{{{case}, {case}}}")
    with pytest.raises(ValueError, match=r"a\.type"):
        tool.invalid_examples(tmp_path)


def test_every_invalid_example_is_written_as_a_file(tmp_path: Path) -> None:
    subprocess.run([sys.executable, tool.__file__, tmp_path], check=True)
    written = {str(file.relative_to(tmp_path)): json.loads(file.read_text()) for file in tmp_path.rglob("*.json")}
    assert written == {f"{example.schema}/{example.name}.json": example.document for example in examples("invalid")}
