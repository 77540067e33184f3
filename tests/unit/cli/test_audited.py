"""Acts of commands that no broker takes wait in a file of the stack, and are written before the next one."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.bus.message import decode
from ratchet.cli import deadletters
from ratchet.cli.__main__ import main
from ratchet.cli.audited import Waiting, record_change
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.errors import Unavailable


def test_change_without_a_broker_waits_in_a_private_file(tmp_path: Path) -> None:
    record_change(tmp_path, "restore", ["state of yesterday"])
    record_change(tmp_path, "add_broker_user", ["bot", "support"])
    path = tmp_path / "data" / "cli" / "audit.waiting"
    first, second = (decode(line, Waiting) for line in path.read_bytes().splitlines())
    assert (first.act, first.objects[0]) == ("restore", "state of yesterday")
    assert (second.act, second.objects[:2]) == ("add_broker_user", ["bot", "support"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_backup_of_no_state_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack, target = tmp_path / "stack", tmp_path / "backup"
    assert main(["backup", str(target), "--dir", str(stack)]) == ExitCode.FAILED
    assert f"no state of a stack in {stack}: name its folder with --dir or RATCHET_DIR" in capsys.readouterr().err
    assert not stack.exists()
    assert not target.exists()


def test_user_without_a_name_is_recorded_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", nameless)
    record_change(tmp_path, "backup")
    (line,) = (tmp_path / "data" / "cli" / "audit.waiting").read_bytes().splitlines()
    assert decode(line, Waiting).actor == f"uid {os.getuid()}"


@pytest.mark.parametrize(
    ("words", "act", "objects"),
    [
        ("drop 3", "drop_deadletters", ["3"]),
        ("drop --all", "drop_deadletters", ["all"]),
        ("replay --stream RL_TURNS", "replay_deadletters", ["stream RL_TURNS"]),
    ],
)
def test_letters_stay_where_the_log_cannot_be_written(
    words: str, act: str, objects: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[tuple[str, list[str]]] = []

    def full(_: object, act: str, objects: Sequence[str]) -> None:
        acts.append((act, [*objects]))
        raise Unavailable("the audit log is full")

    monkeypatch.setattr(deadletters, "settings_of", lambda _: None)  # type: ignore[misc]  # nothing may be asked
    monkeypatch.setattr(deadletters, "record_act", full)
    assert main(["deadletters", *words.split(), "--dir", str(tmp_path)]) != ExitCode.DONE
    assert acts == [(act, objects)]
