"""`ratchet logs`: the last lines, then what is new, whatever happens to the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.logs import Follower


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
    ],
)
def test_what_cannot_be_shown_is_refused(
    log: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", *words, "--dir", str(log.parent.parent)]) != 0
    assert message in capsys.readouterr().err


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
