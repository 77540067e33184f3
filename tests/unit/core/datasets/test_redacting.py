"""A data set is copied without secrets, with a summary of what was taken out."""

from __future__ import annotations

import json

import pytest

from ratchet.core.datasets.redacting import RedactionSummary, redacted_records
from ratchet.core.errors import Rejected


def test_records_are_copied_without_secrets_and_hits_are_counted() -> None:
    lines = [b'{"messages": [{"role": "user", "content": "mia@example.com"}]}\n', b"\n", b'{"a" :  1.0}\n']
    summary = RedactionSummary()
    copied = [*redacted_records(lines, summary)]
    assert json.loads(copied[0]) == {"messages": [{"role": "user", "content": "[REDACTED:email]"}]}
    assert copied[1] == b'{"a" :  1.0}\n'
    assert (summary.records, summary.changed, summary.redactions) == (2, 1, {"email": 1})


def test_a_record_with_a_secret_and_its_token_ids_is_left_out() -> None:
    calls = [{"prompt_token_ids": [1, 2], "output_token_ids": [3]}]
    lines = [json.dumps({"text": text, "calls": calls}).encode() for text in ("mia@example.com", "nothing")]
    summary = RedactionSummary()
    copied = [json.loads(line) for line in redacted_records(lines, summary)]
    assert copied == [{"text": "nothing", "calls": calls}]
    assert (summary.records, summary.left_out) == (1, 1)


def test_a_line_that_is_no_json_is_named() -> None:
    with pytest.raises(Rejected, match="line 2"):
        [*redacted_records([b"{}", b"{"], RedactionSummary())]
