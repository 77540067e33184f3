"""A verb that people look for in another place is answered with the whole line to paste."""

from __future__ import annotations

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.commands import COMMANDS, GROUPS
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.hints import ELSEWHERE


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("approve", "support"), "`ratchet rollout approve support`"),
        (("revert", "support", "--reason", "it is late"), "`ratchet rollout revert support --reason 'it is late'`"),
        (("policies", "rollback", "support@3"), "`ratchet rollout rollback support@3`"),
        (("jobs", "cancel", "latest"), "`ratchet cancel latest`"),
    ],
)
def test_a_verb_that_lives_elsewhere_is_a_hint(
    words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == ExitCode.USAGE
    assert line in capsys.readouterr().err


def test_a_hint_leads_to_a_command() -> None:
    targets = {there.split()[0] for below in ELSEWHERE.values() for there in below.values()}
    assert targets <= {*COMMANDS, *GROUPS}
    for there in {there for below in ELSEWHERE.values() for there in below.values()}:
        assert main([*there.split(), "--help"]) == ExitCode.DONE
