"""What agents and users wrote is data to a terminal: no command lets it act, reorder what is shown, or flood it."""

from __future__ import annotations

import json

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.output import LONG, cell, print_json, print_table
from ratchet.cli.trajectories import Whole, show_one
from ratchet.core.contract import Feedback
from ratchet.core.contract.trajectory import Action, TaskContext
from ratchet.core.rules.texts import shown
from tests.support.messages import AT, trajectory

HOSTILE = "a\x1b]0;hacked\x07\x1b[31m\x00\x7f\x9b2J\u202eb\u2066c\u200fd\ufeff\U000e0041\r"
ACTING = set(HOSTILE) - set("a]0;hackedb31mcJd2[")


def recorded(text: str) -> Whole:
    first = trajectory().turns[0]
    turns = [
        type(first)(
            turn_id=1,
            timestamp=AT,
            observation=first.observation,
            result=first.result,
            action=Action(type="response", raw_response=text),
        )
    ]
    opinion = Feedback(
        feedback_id=trajectory().trajectory_id,
        trajectory_id=trajectory().trajectory_id,
        kind="comment",
        at=AT,
        value=text,
    )
    context = TaskContext(task_id=text, instructions=text)
    failed = {"call": 0, "version": 2, "arm": "canary", "error": text}
    return Whole(trajectory(turns=turns, task_context=context, agent_id=text), [], [opinion], [], failed=[failed])


def test_control_characters_and_marks_are_spelled() -> None:
    assert shown("ok\x1b[31m\u202e\tü\n") == "ok\\x1b[31m\\u202e\tü\n"
    assert not set(shown(HOSTILE)) & ACTING


def test_a_trajectory_shows_its_texts_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_one(recorded(HOSTILE))
    printed = capsys.readouterr().out
    assert not set(printed) & ACTING
    assert printed.count("hacked") >= 5


def test_tables_and_json_are_as_safe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [(HOSTILE, f"{HOSTILE}\nforged row")], "")
    table = capsys.readouterr().out
    print_json({"opinion": HOSTILE})
    document = capsys.readouterr().out
    assert not set(table + document) & ACTING
    assert json.loads(document) == {"opinion": HOSTILE}
    assert "\\nforged row" in table


def test_an_error_is_as_safe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contract", "check", "\x1b[31m\u202e.json"]) == ExitCode.FAILED
    assert capsys.readouterr().err == "ratchet: no such file: \\x1b[31m\\u202e.json\n"


def test_long_turns_are_cut_unless_all_of_them_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    long = recorded("ø" * 20_000)
    show_one(long)
    printed = capsys.readouterr().out
    assert f"… ({20_000 - LONG} more characters)" in printed
    assert "--full" in printed
    assert printed.count("ø") <= 6 * LONG
    show_one(long, full=True)
    assert "ø" * 20_000 in capsys.readouterr().out


def test_a_cell_is_bounded_and_takes_any_instant() -> None:
    assert len(cell("y" * 1_000_000).plain) < LONG + 50
    assert cell(AT.replace(year=1)).plain
    assert cell(AT.replace(year=9999, month=12, day=31, hour=23)).plain
