"""A watch shows what changes, names an outage and goes on after it, and ends with Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import typer

from ratchet.cli.exit_codes import NoStack
from ratchet.cli.output import console
from ratchet.cli.watch import watch
from ratchet.core.errors import BusUnavailable, Unavailable


def asked(*answers: str | Exception) -> tuple[Callable[[], str], Callable[[float], None]]:
    """A question with these answers, and a sleep that Ctrl-C interrupts behind the last one."""
    left: Iterator[str | Exception] = iter(answers)
    asks = 0

    def read() -> str:
        nonlocal asks
        asks += 1
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        if asks == len(answers):
            raise KeyboardInterrupt

    return read, sleep


def lines(capsys: pytest.CaptureFixture[str], *answers: str | Exception) -> list[str]:
    read, sleep = asked(*answers)
    with pytest.raises(KeyboardInterrupt):
        watch(read, console.print, False, sleep=sleep)
    printed = capsys.readouterr().out.splitlines()
    return [line for line in printed if line and "Ctrl-C ends" not in line]


def test_what_has_not_changed_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "one", "one", "two") == ["one", "two"]


def test_an_outage_is_named_above_the_last_answer_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    printed = lines(capsys, "one", Unavailable("nothing answers"), NoStack("no stack runs"), "one")
    assert printed == ["one", "no answer: nothing answers", "one", "no answer: no stack runs", "one", "one"]


def test_what_a_terminal_obeys_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, "a\x1b[2Jb", Unavailable("\x07")) == ["a\\x1b[2Jb", "no answer: \\x07", "a\\x1b[2Jb"]


def test_the_first_answer_of_a_service_that_is_away_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(capsys, BusUnavailable("away"), "one") == ["no answer: away", "one"]


def test_an_error_that_no_time_mends_ends_it_at_once() -> None:
    read, sleep = asked(NoStack("no stack runs"))
    with pytest.raises(NoStack):
        watch(read, console.print, False, sleep=sleep)


def test_a_document_has_an_end_and_a_watch_has_none() -> None:
    read, sleep = asked("one")
    with pytest.raises(typer.BadParameter, match="choose one"):
        watch(read, console.print, True, sleep=sleep)
