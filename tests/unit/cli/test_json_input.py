"""JSON input of a command becomes a document, or one line of error."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ratchet.cli.contract import read_proposal
from ratchet.cli.options import json_file, json_in
from ratchet.cli.training import hyperparameters, read_request
from ratchet.core.errors import NotFound, Rejected

DEEP = b"[" * 100_000 + b"]" * 100_000


def test_a_document_is_read(tmp_path: Path) -> None:
    file = tmp_path / "document.json"
    file.write_text('{"a": [1, null]}')
    assert json_file(file) == {"a": [1, None]}


@pytest.mark.parametrize("text", [DEEP, b"{", b"\xff", b""], ids=["deep", "torn", "not text", "empty"])
def test_what_is_no_json_is_refused_in_one_line(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"^standard input is not JSON: "):
        json_in(text, "standard input")
    file = tmp_path / "document.json"
    file.write_bytes(text)
    for read in (json_file, read_request, partial(read_proposal, subject=None)):
        with pytest.raises(Rejected, match="is not JSON: "):
            read(file)


def test_a_file_that_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(NotFound):
            json_file(path)


def test_a_request_is_an_object_and_a_deep_value_is_text(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text("[]")
    with pytest.raises(Rejected, match="is not a JSON object"):
        read_request(file)
    assert hyperparameters([f"note={DEEP.decode()}"]) == {"note": DEEP.decode()}
