"""What is checked before a start, room on the disk, and logs that are cut while a process writes to them."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import existing, free_bytes, shortage
from ratchet.local.local_stack.log_files import begin_log, cut_log, parts_of, remove_old_parts
from ratchet.local.local_stack.preflight import START_BYTES, planned, require_room
from ratchet.local.local_stack.settings import StackSettings


def test_a_wrong_setting_names_the_service_and_the_variable(tmp_path: Path) -> None:
    settings = StackSettings(
        directory=tmp_path / "state",
        free_ports=True,
        only=("reward_computer", "trajectory_collector"),
        env={"RATCHET_REWARD_LINGER_S": "soon"},
    )
    before = dict(os.environ)
    with pytest.raises(ConfigError, match=r"reward_computer: wrong setting RATCHET_REWARD_LINGER_S"):
        planned(settings)
    assert dict(os.environ) == before
    assert not (tmp_path / "state").exists()


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no stack can be kept in"):
        planned(StackSettings(directory=tmp_path / "file" / "state", free_ports=True, only=("s3",)))


def test_a_good_plan_is_given_as_it_is(tmp_path: Path) -> None:
    plan = planned(StackSettings(directory=tmp_path, free_ports=True, only=("trajectory_collector",)))
    assert [program.name for program in plan.programs] == ["nats", "s3", "clickhouse", "trajectory_collector"]
    assert list(tmp_path.iterdir()) == []


def test_a_start_without_room_is_refused_with_both_figures(tmp_path: Path) -> None:
    require_room(tmp_path, START_BYTES)
    with pytest.raises(ConfigError, match=r"has 0\.50 GB free, 1\.07 GB are needed for a start") as caught:
        require_room(tmp_path, 500_000_000)
    assert "\n" not in str(caught.value)


def test_room_is_that_of_the_folder_that_will_hold_it(tmp_path: Path) -> None:
    assert existing(tmp_path / "a" / "b") == tmp_path.resolve()
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_enough_room_is_no_shortage(tmp_path: Path) -> None:
    assert shortage(10, 10, tmp_path) is None


def test_a_long_log_is_cut_while_a_process_appends_to_it(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"old\n" * 100)
        cut_log(log, most_bytes=400)
        assert log.stat().st_size == 400
        cut_log(log, most_bytes=399)
        writer.write(b"new\n")
    (part,) = parts_of(log)
    assert (log.read_bytes(), part.read_bytes()) == (b"new\n", b"old\n" * 100)
    assert sorted(tmp_path.iterdir()) == [log, part]


def test_a_log_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    cut_log(tmp_path / "absent.log")
    assert list(tmp_path.iterdir()) == []


def test_each_start_begins_a_log_and_keeps_those_before(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    for text in ("one", "two", ""):
        begin_log(log)
        log.write_text(text)
    begin_log(log)
    assert [part.read_text() for part in parts_of(log)] == ["one", "two"]


def test_parts_are_removed_after_thirty_days_and_beyond_their_bound(tmp_path: Path) -> None:
    log, now = tmp_path / "a.log", datetime(2026, 3, 31, tzinfo=UTC)
    for days, name in ((31, "20260228T000000000000"), (29, "20260302T000000000000"), (1, "20260330T000000000000")):
        part = log.with_name(f"a.log.{name}")
        part.write_bytes(b"x" * 100)
        written = (now - timedelta(days=days)).timestamp()
        os.utime(part, (written, written))
    remove_old_parts(log, now)
    assert [part.suffix for part in parts_of(log)] == [".20260302T000000000000", ".20260330T000000000000"]
    remove_old_parts(log, now, most_bytes=150)
    assert [part.suffix for part in parts_of(log)] == [".20260330T000000000000"]
