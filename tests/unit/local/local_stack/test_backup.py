"""Backups of a state: whole or not at all, checked before one is put back, and a state is never overwritten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ratchet.cli.__main__ import main
from ratchet.core.errors import ConfigError, Conflict, NotFound, Rejected
from ratchet.local.local_stack.backup import MANIFEST, back_up, read_manifest, restore
from ratchet.local.local_stack.preflight import planned
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.state import (
    FORMAT,
    VERSION_FILE,
    AlreadyRunning,
    StateVersion,
    own_version,
    read_version,
    stack_lock,
    write_version,
)
from ratchet.rl_coordinator.erasures.receipts import FOLDER

FOREIGN = StateVersion(format=FORMAT, program="9.9", schema="another")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state with what a real one has: files, empty folders, modes, links within it (as ClickHouse makes), logs."""
    directory = tmp_path / "state"
    (directory / "data" / "nats" / "empty").mkdir(parents=True)
    (directory / "data" / "nats" / "1.blk").write_bytes(b"\x00\xff" * 1000)
    (directory / "data" / "gateway").mkdir()
    (directory / "data" / "link").symlink_to(directory / "data" / "nats")
    (directory / "secrets.json").write_text("{}")
    (directory / "secrets.json").chmod(0o600)
    (directory / "logs").mkdir()
    (directory / "logs" / "nats.log").write_text("noise")
    write_version(directory)
    return directory


def contents(directory: Path) -> dict[str, object]:
    """What a state holds, beside logs and locks."""
    return {
        str(path.relative_to(directory)): path.resolve().relative_to(directory)
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode)
        if path.is_file()
        else None
        for path in directory.rglob("*")
        if path.relative_to(directory).parts[0] not in {"logs", "lock"}
    }


def test_a_restored_state_is_the_one_that_was_backed_up_also_elsewhere(state: Path, tmp_path: Path) -> None:
    before = contents(state)
    manifest = back_up(state, tmp_path / "backup")
    (state / "data" / "nats" / "1.blk").write_bytes(b"changed")  # a linked copy would change with it
    elsewhere = tmp_path / "restored"

    restore(tmp_path / "backup", elsewhere)

    assert contents(elsewhere) == before
    assert (elsewhere / "data" / "link").resolve() == elsewhere / "data" / "nats"
    assert manifest.version == own_version()
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0


def test_a_state_that_is_there_is_refused_or_set_aside_and_kept(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup")
    (state / "data" / "newer").write_text("newer")

    with pytest.raises(Conflict, match="--replace sets it aside"):
        restore(tmp_path / "backup", state)
    _, aside = restore(tmp_path / "backup", state, replace=True)

    assert aside is not None
    assert (aside / "data" / "newer").read_text() == "newer"
    assert not (state / "data" / "newer").exists()


def test_receipts_of_erasures_go_with_a_restored_state(state: Path, tmp_path: Path) -> None:
    receipts = state / "data" / "rl_coordinator" / FOLDER
    receipts.mkdir(parents=True)
    (receipts / "one.json").write_text("before")
    back_up(state, tmp_path / "backup")
    (receipts / "two.json").write_text("since then")

    restore(tmp_path / "backup", state, replace=True)

    assert {path.name: path.read_text() for path in receipts.iterdir()} == {
        "one.json": "before",
        "two.json": "since then",
    }


def test_an_empty_folder_is_filled(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup")
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "backup", tmp_path / "empty")
    assert (tmp_path / "empty" / "secrets.json").is_file()


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "longer", "a link", "a pipe", "a folder"])
def test_a_damaged_backup_is_refused_and_leaves_the_state_as_it_was(state: Path, tmp_path: Path, damage: str) -> None:
    back_up(state, tmp_path / "backup")
    file = tmp_path / "backup" / "state" / "data" / "nats" / "1.blk"
    content = file.read_bytes()
    file.unlink()
    if damage == "longer":
        file.write_bytes(content + b"x")
    elif damage == "a link":
        file.symlink_to("/dev/zero")
    elif damage == "a pipe":
        os.mkfifo(file)
    elif damage == "a folder":
        file.mkdir()
    elif damage != "missing":
        file.write_bytes(content[:-1] + (b"" if damage == "cut" else b"x"))
    before = contents(state)

    for directory, replace in ((state, True), (tmp_path / "other", False)):
        with pytest.raises(Rejected, match=r"the backup is damaged: data/nats/1\.blk"):
            restore(tmp_path / "backup", directory, replace=replace)

    assert contents(state) == before
    assert not (tmp_path / "other").exists()
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize("part", ["data", "data/nats", "data/nats/1.blk", "secrets.json"])
def test_what_a_state_links_to_elsewhere_is_in_the_backup(state: Path, tmp_path: Path, part: str) -> None:
    before = contents(state)
    elsewhere = tmp_path / "big"
    (state / part).rename(elsewhere)
    (state / part).symlink_to(elsewhere)

    back_up(state, tmp_path / "backup")
    restored = tmp_path / "restored"
    restore(tmp_path / "backup", restored)

    assert contents(restored) == before
    assert not (restored / part).is_symlink()


def test_a_state_that_a_backup_cannot_hold_whole_is_refused_and_named(state: Path, tmp_path: Path) -> None:
    (state / "data" / "engine").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ConfigError, match=r"data/engine links to .*unmounted, which is not there"):
        back_up(state, tmp_path / "backup")
    (state / "data" / "engine").unlink()
    Path(os.fsdecode(bytes(state) + b"/data/\xff")).touch()
    with pytest.raises(ConfigError, match="is not UTF-8"):
        back_up(state, tmp_path / "backup")
    assert not list(tmp_path.glob("*backup*"))


HOSTILE = {
    "a link that leads outside": {"data/a": "/outside"},
    "a link with steps up": {"data/a": "data/../../outside"},
    "a name below a link": {"data/a": "data/nats", "data/a/evil": "data/nats"},
    "a link to below a link": {"data/a": "data/link/1.blk"},
    "a link that a state does not have": {"stack.json": "data/nats"},
    "a name that the system does not take": {"data/\0": "data/nats"},
}


@pytest.mark.parametrize("links", HOSTILE.values(), ids=HOSTILE)
def test_a_backup_that_would_write_outside_of_a_state_is_refused(
    state: Path, tmp_path: Path, links: dict[str, str]
) -> None:
    manifest = back_up(state, tmp_path / "backup")
    hostile = msgspec.structs.replace(manifest, links={**manifest.links, **links})
    (tmp_path / "backup" / MANIFEST).write_bytes(msgspec.json.encode(hostile))
    with pytest.raises(Rejected, match="names a file outside of a state"):
        restore(tmp_path / "backup", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_no_backup_is_one_clear_line(state: Path, tmp_path: Path) -> None:
    (tmp_path / "no").mkdir()
    with pytest.raises(NotFound, match="is not a backup"):
        restore(tmp_path / "no", tmp_path / "other")
    back_up(state, tmp_path / "backup")
    whole = (tmp_path / "backup" / MANIFEST).read_bytes()
    for blob in (b"", whole[: len(whole) // 2], whole.replace(b'"data/gateway"', b'"../outside"')):
        (tmp_path / "backup" / MANIFEST).write_bytes(blob)
        with pytest.raises(Rejected):
            read_manifest(tmp_path / "backup")


def test_a_stack_that_runs_and_a_folder_that_exists_are_refused(state: Path, tmp_path: Path) -> None:
    with stack_lock(state), pytest.raises(AlreadyRunning):
        back_up(state, tmp_path / "backup")
    back_up(state, tmp_path / "backup")
    with stack_lock(state), pytest.raises(AlreadyRunning):
        restore(tmp_path / "backup", state, replace=True)
    with pytest.raises(Conflict, match="name a new folder"):
        back_up(state, tmp_path / "backup")
    with pytest.raises(ConfigError, match="lies inside"):
        back_up(state, state / "data" / "backup")
    with pytest.raises(NotFound, match="no state"):
        back_up(tmp_path / "none", tmp_path / "another")


KILLED = """
import sys, time
from pathlib import Path
from ratchet.local.local_stack.backup import back_up, restore

def stop(done, size):
    print("copied", flush=True)
    time.sleep(600)

source, target = map(Path, sys.argv[2:])
{"backup": back_up, "restore": restore}[sys.argv[1]](source, target, on_progress=stop)
"""


@pytest.mark.parametrize("way", ["backup", "restore"])
def test_a_kill_on_the_way_leaves_nothing_that_passes_for_whole(state: Path, tmp_path: Path, way: str) -> None:
    back_up(state, tmp_path / "backup")
    source, target = (state, tmp_path / "second") if way == "backup" else (tmp_path / "backup", tmp_path / "other")
    words = [sys.executable, "-P", "-c", KILLED, way, str(source), str(target)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"copied\n"
        process.kill()
    assert not (target / "data").exists()
    assert not (target / MANIFEST).exists()
    (left,) = tmp_path.glob(".*.partial")

    shutil.copytree(left, left.with_name(".ratchet-copy.sunday.partial"))  # of another day, and another name
    (back_up if way == "backup" else restore)(source, target)
    assert target.is_dir()
    assert not list(tmp_path.glob(".*.partial"))


BROKEN_OFF = """
import os, sys
from pathlib import Path
from ratchet.local.local_stack.backup import restore

backup, state, way = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

def stop(event, words):
    if event == "os.rename" and str(words[1]) == str(state) and str(words[0]).endswith(".partial"):
        if way == "kill":
            os.kill(os.getpid(), 9)
        raise OSError("the disk failed")

sys.addaudithook(stop)
restore(backup, state, replace=True)
"""


def broken_off(backup: Path, state: Path, way: str) -> None:
    """A restore that ends after it has set the old state aside, and before the new one takes its place."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BROKEN_OFF, backup, state, way], capture_output=True, check=False
    )
    assert done.returncode == (-9 if way == "kill" else 1), done.stderr


def test_a_restore_that_fails_at_its_end_leaves_the_old_state(state: Path, tmp_path: Path) -> None:
    before = contents(state)
    back_up(state, tmp_path / "backup")
    broken_off(tmp_path / "backup", state, "fail")
    assert contents(state) == before
    assert {path.name for path in tmp_path.iterdir()} == {"state", "backup"}


def test_no_stack_starts_empty_where_a_killed_restore_set_its_state_aside(state: Path, tmp_path: Path) -> None:
    before = contents(state)
    back_up(state, tmp_path / "backup")
    broken_off(tmp_path / "backup", state, "kill")
    (aside,) = tmp_path.glob("state.before-*")

    with pytest.raises(ConfigError, match=f"{aside} is one that .* has set aside"):
        planned(StackSettings(directory=state, free_ports=True))
    with pytest.raises(ConfigError, match="move it back"):
        restore(tmp_path / "backup", state)
    aside.rename(state)
    assert contents(state) == before
    restore(tmp_path / "backup", state, replace=True)


def test_a_restore_keeps_a_stack_from_starting_also_where_no_folder_was(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup")
    target = tmp_path / "other"

    def start(_done: int, _size: int) -> None:
        with pytest.raises(AlreadyRunning), stack_lock(target):
            pass

    restore(tmp_path / "backup", target, on_progress=start)
    assert (target / "secrets.json").is_file()


def test_a_restore_takes_no_folder_that_something_came_into(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup")
    target = tmp_path / "other"
    with pytest.raises(OSError, match="not empty"):
        restore(tmp_path / "backup", target, on_progress=lambda _done, _size: (target / "data").mkdir(exist_ok=True))
    with pytest.raises(AlreadyRunning), stack_lock(target), stack_lock(target):
        pass  # the folder and its lock are there
    assert (target / "data").is_dir()


@pytest.mark.parametrize(
    "version",
    [FOREIGN, {"format": FORMAT, "program": "0.1.0"}],
    ids=["another schema", "none noted"],
)
def test_state_of_another_schema_is_refused_by_start_and_restore(state: Path, tmp_path: Path, version: object) -> None:
    (state / VERSION_FILE).write_bytes(msgspec.json.encode(version))
    problem = "was written by another version of Ratchet .* has no step from there: use that version"
    with pytest.raises(ConfigError, match=problem):
        planned(StackSettings(directory=state, free_ports=True))
    back_up(state, tmp_path / "backup")
    with pytest.raises(ConfigError, match=problem):
        restore(tmp_path / "backup", tmp_path / "other")


@pytest.mark.parametrize(("format_", "age"), [(FORMAT - 1, "older"), (FORMAT + 1, "newer")])
def test_state_folder_of_another_format_is_refused_as_such(state: Path, tmp_path: Path, format_: int, age: str) -> None:
    other = StateVersion(format=format_, program="9.9", schema=own_version().schema)
    (state / VERSION_FILE).write_bytes(msgspec.json.encode(other))
    problem = rf"has format {format_}, {age} than format {FORMAT}, .*: use Ratchet 9\.9, or start with another --dir$"
    with pytest.raises(ConfigError, match=problem):
        planned(StackSettings(directory=state, free_ports=True))
    back_up(state, tmp_path / "backup")
    with pytest.raises(ConfigError, match=problem):
        restore(tmp_path / "backup", tmp_path / "other")


def test_version_file_that_is_broken_comes_with_advice(state: Path) -> None:
    (state / VERSION_FILE).write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"version\.json cannot be read: .*: put it back from a backup, or delete it"):
        read_version(state)


def test_write_version_notes_the_program_and_its_schema(state: Path) -> None:
    write_version(state)
    assert read_version(state) == own_version()


@pytest.mark.parametrize(
    "damage", ["cut", "a digest changed", "a file left out", "all left out", "no digest", "a strange mode"]
)
def test_a_manifest_that_was_changed_is_named_as_such(state: Path, tmp_path: Path, damage: str) -> None:
    manifest = back_up(state, tmp_path / "backup")
    path = tmp_path / "backup" / MANIFEST
    name, file = next(iter(manifest.files.items()))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "all left out":
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files={}, folders=[], links={})))
    elif damage == "no digest":
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, digest="", files={})))
    elif damage == "a strange mode":
        files = {**manifest.files, name: msgspec.structs.replace(file, mode=2**40)}
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    elif damage == "a file left out":
        files = {other: one for other, one in manifest.files.items() if other != name}
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    else:
        files = {**manifest.files, name: msgspec.structs.replace(file, sha256="0" * 64)}
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(Rejected, match=r"the backup (is damaged or )?was changed"):
        restore(tmp_path / "backup", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_dry_run_of_a_backup_checks_all_and_copies_nothing(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "backup"
    words = ["backup", str(target), "--dry-run", "--json", "--dir", str(state)]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert not target.exists()
    manifest = back_up(state, target)
    assert document["dry_run"] is True
    assert document["body"] == {"files": len(manifest.files), "bytes": manifest.size}
    assert main(words) == 1
    assert "exists: name a new folder" in capsys.readouterr().err
