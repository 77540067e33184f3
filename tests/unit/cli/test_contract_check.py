"""The verdict of `ratchet contract check` on a proposed schema, before it reads any stream."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from ratchet.cli.contract import compatibility, read_proposal
from ratchet.core.errors import NotFound, RatchetError
from tests.support.contract_files import SCHEMAS


@pytest.mark.parametrize(
    ("text", "subject", "reason"),
    [
        ("{", None, "is not JSON"),
        ('{"type": 7}', "agent.rl.alert.v1", "not a JSON Schema"),
        ('{"$ref": "#/$defs/nowhere"}', "agent.rl.alert.v1", "not a JSON Schema"),
        ("[]", "agent.rl.alert.v1", "not a JSON Schema"),
        ("{}", None, "name one with --subject"),
        ("7", None, "name one with --subject"),
        ("{}", "agent.rl.nonsense.v1", "no topic has the subject"),
    ],
)
def test_what_cannot_be_held_against_a_contract_is_one_clear_line(
    tmp_path: Path, text: str, subject: str | None, reason: str
) -> None:
    file = tmp_path / "proposed.json"
    file.write_text(text)
    with pytest.raises(RatchetError, match=reason) as refused:
        read_proposal(file, subject)
    assert len(str(refused.value).splitlines()) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"proposed\.json"):
        read_proposal(tmp_path / "proposed.json", None)


def test_valid_examples_that_readers_would_refuse_are_named(tmp_path: Path) -> None:
    schema = copy.deepcopy(SCHEMAS["alert.v1"])
    schema["required"].append("runbook")
    file = tmp_path / "proposed.json"
    file.write_text(json.dumps(schema))
    verdict = compatibility(read_proposal(file, None))
    assert not verdict.compatible
    assert {change.what for change in verdict.changes} == {"became required"}
    assert "examples/alert.v1/valid/minimal.json" in verdict.examples
