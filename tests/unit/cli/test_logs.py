"""`ratchet logs`: the last lines, then what is new, whatever happens to the file."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.logs import BEGINNING, Follower, lines_of
from ratchet.local.local_stack.log_files import begin_log, cut_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "rl_coordinator.log"
    path.parent.mkdir()
    path.write_text("one\ntwo\nthree\n")
    return path


def append(log: Path, text: str) -> None:
    with log.open("a") as file:
        file.write(text)


def test_the_last_lines_come_first_and_then_each_new_one_once(log: Path) -> None:
    follower = Follower(log, 2)
    assert follower.read() == ["two", "three"]
    append(log, "four\nfi")
    assert follower.read() == ["four"]
    append(log, "ve\n")
    assert (follower.read(), follower.read()) == (["five"], [])


def test_a_log_that_is_cut_or_begun_anew_is_followed_on(log: Path) -> None:
    follower = Follower(log, 0)
    assert follower.read() == []
    log.write_text("cut\n")
    assert follower.read() == ["cut"]
    log.replace(log.with_suffix(".log.1"))
    assert follower.read() == []
    log.write_text("a longer line than all before\n")
    assert follower.read() == ["a longer line than all before"]


def test_a_line_that_broke_off_is_shown_once_the_log_is_begun_anew(log: Path) -> None:
    follower = Follower(log, 0)
    append(log, "Segmentation fau")
    assert follower.read() == []
    log.replace(log.with_suffix(".log.1"))
    log.write_text("started\n")
    assert follower.read() == ["Segmentation fau", "started"]


class Moved(type(Path())):
    """A log that a start replaces just after it was opened."""

    def open(self, *how: Any, **more: Any) -> Any:
        file = super().open(*how, **more)
        old = self.with_suffix(".log.1")
        if not old.exists():
            self.replace(old)
            self.write_text("a longer line than all before\n")
        return file


def test_a_log_that_is_replaced_while_it_is_read_is_followed_on(log: Path) -> None:
    follower = Follower(Moved(log), 5)
    assert (follower.read(), follower.read()) == (["one", "two", "three"], ["a longer line than all before"])


def test_a_last_line_without_an_end_is_shown(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(log, "Segmentation fault")
    assert main(["logs", "coordinator", "-n", "2", "--dir", str(log.parent.parent)]) == 0
    assert capsys.readouterr().out == "three\nSegmentation fault\n"


def test_a_service_is_named_as_in_status_or_by_its_short_name(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(log, "\x1b[31mred\n")
    state = str(log.parent.parent)
    assert main(["logs", "coordinator", "-n", "2", "--dir", state]) == 0
    assert capsys.readouterr().out == "three\n\\x1b[31mred\n"
    assert main(["logs", "rl_coordinator", "--json", "--dir", state]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][:2] == ["one", "two"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gatewy"], "there are those of rl_coordinator"),
        (["coordinator", "-f", "--json"], "choose one"),
        (["coordinator", "-f", "--since", "1h"], "choose one"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    log: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words, "--dir", str(log.parent.parent)]) != 0
    assert message in capsys.readouterr().err


def test_path_in_the_place_of_a_service_leads_to_no_other_folder(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "../../etc/passwd", "--dir", str(log.parent.parent)]) == 1
    assert f"no log of ../../etc/passwd in {log.parent}; there are" in capsys.readouterr().err


def test_without_a_stack_there_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "gateway", "--dir", str(tmp_path)]) == 1
    assert "no stack was started there yet" in capsys.readouterr().err


def test_without_a_name_the_logs_that_there_are_are_listed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = log.parent.parent
    (log.parent / "nats.log").touch()
    assert main(["logs", "--dir", str(directory)]) == 0
    assert {log.stem, "nats"} <= set(capsys.readouterr().out.split())
    assert main(["logs", "--json", "--dir", str(directory)]) == 0
    assert json.loads(capsys.readouterr().out) == {"logs": sorted([log.stem, "nats"])}


@pytest.fixture
def logs(log: Path) -> Path:
    """Logs of two processes, with a part from before; the state's directory."""
    line = '{{"service": "x", "event": "{}", "timestamp": "2026-03-02T{}:00.5Z"}}\n'
    old = log.with_name("rl_coordinator.log.20260302T090000000000")
    old.write_text(line.format("before the restart", "08:59"))
    log.write_text(line.format("started", "09:00") + "Traceback: will retry\n" + line.format("ready", "09:04"))
    local = datetime(2026, 3, 2, 9, 2, tzinfo=UTC).astimezone()
    (log.parent / "nats.log").write_text(f"[7] {local:%Y/%m/%d %H:%M:%S}.1 [INF] Server\n")
    return log.parent.parent


def searched(state: Path, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a search prints, a word of each line."""
    assert main(["logs", *words, "--json", "--dir", str(state)]) == 0
    return [line["line"] for line in json.loads(capsys.readouterr().out)["lines"]]


def test_lines_of_all_processes_come_in_the_order_of_time(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = searched(logs, capsys, "--since", "2026-03-02")
    assert [line.partition('"event": "')[2].partition('"')[0] or line.split()[-1] for line in lines] == [
        *("before the restart", "started", "retry", "Server", "ready"),
    ]


def test_search_begins_at_an_instant_with_lines_that_name_no_time(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = searched(logs, capsys, "coordinator", "--since", "2026-03-02T09:00:00")
    assert ["started" in lines[0], "Traceback" in lines[1], "ready" in lines[2]] == [True] * 3


def test_search_for_a_text_reads_parts_from_before_a_restart(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(searched(logs, capsys, "--grep", "BEFORE the")) == 1
    assert main(["logs", "--grep", "will retry", "--dir", str(logs)]) == 0
    assert capsys.readouterr().out == "rl_coordinator Traceback: will retry\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["coordinator", "--grep", "absent"], "no line with 'absent' in the log of rl_coordinator"),
        (["--grep", "absent"], "no line with 'absent' in any log"),
        (["--since", "2026-03-03"], "no line since 2026-03-03 in any log"),
        (["--grep", "absent", "--since", "2026-03-03"], "no line with 'absent' since 2026-03-03 in any log"),
    ],
)
def test_search_without_a_line_names_what_it_looked_for(
    logs: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words, "--dir", str(logs)]) == 0
    answer = capsys.readouterr()
    assert (answer.out, answer.err) == ("", f"{what}\n")
    assert searched(logs, capsys, *words) == []


@pytest.mark.parametrize("since", ["999999d", "99999999d", "99999999999999999999w"])
def test_search_since_before_the_calendar_names_the_bound(
    logs: Path, since: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", "--since", since, "--dir", str(logs)]) == 2
    assert f"{since!r} goes back before the year 1: name a shorter time" in capsys.readouterr().err


@pytest.mark.parametrize("instant", ["0001-01-01 00:00:00+05:00", "9999-12-31 23:59:59-05:00"])
def test_line_with_an_instant_beyond_the_calendar_is_shown(
    instant: str, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(f"{instant} lost\n")
    assert [line.split()[-1] for line in searched(log.parent.parent, capsys, "--grep", "lost")] == ["lost"]


@pytest.mark.parametrize("read", [1, 3])
def test_search_loses_no_line_to_a_log_that_is_cut_meanwhile(read: int, log: Path) -> None:
    log.write_text("old\n")
    begin_log(log)
    log.write_text("new\n" * 10_000)
    lines = lines_of(log, BEGINNING)
    before = list(itertools.islice(lines, read))
    cut_log(log, most_bytes=10)
    assert len(before) + len(list(lines)) == 10_001


ODD = [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("gone")]
"""Ways to make a path that is no regular file."""


@pytest.mark.parametrize("make", ODD, ids=["folder", "pipe", "dangling link"])
def test_path_that_is_no_regular_file_is_no_log(
    make: Callable[[Path], object], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(log.with_name("nats.log"))
    make(log.with_name("rl_coordinator.log.20260302T090000000000"))
    state = log.parent.parent
    assert searched(state, capsys, "--grep", "") == ["one", "two", "three"]
    assert main(["logs", "nats", "--dir", str(state)]) == 1
    assert "there are those of rl_coordinator" in capsys.readouterr().err


@pytest.mark.parametrize("make", ODD, ids=["folder", "pipe", "dangling link"])
def test_followed_log_may_stop_being_a_regular_file(make: Callable[[Path], object], log: Path) -> None:
    follower = Follower(log, 3)
    assert len(follower.read()) == 3
    log.unlink()
    make(log)
    assert follower.read() == []
