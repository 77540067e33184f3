"""Two of everything: copies beside each other, and commands that meet the lock of a state while it changes its place.

Each script takes its own moment by an audit hook: what happens beside it happens exactly between two of its steps.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core.errors import Conflict
from ratchet.local.local_stack.backup import back_up, read_manifest, restore


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state with folders and files."""
    directory = tmp_path / "state"
    (directory / "data" / "nats" / "empty").mkdir(parents=True)
    for number in range(3):
        (directory / "data" / "nats" / f"{number}.blk").write_text(str(number))
    return directory


def contents(directory: Path) -> dict[str, str | None]:
    """Every path of a state's data, with the text of files."""
    data = directory / "data"
    return {str(path.relative_to(data)): path.read_text() if path.is_file() else None for path in data.rglob("*")}


def run(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a script of this file."""
    command = [sys.executable, "-P", "-c", script, *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, text=True)


BESIDE = """
import sys
from pathlib import Path
from ratchet.local.local_stack.backup import back_up, restore

way, source, target, other = sys.argv[1], *map(Path, sys.argv[2:])
made, busy = [], []

def beside(event, words):
    if event in ("os.mkdir", "os.rename", "open") and ".ratchet-copy.a." in str(words[0]) and not busy:
        busy.append(event)
        made.append(target.with_name(f"beside-{len(made)}"))
        back_up(other, made[-1])
        busy.clear()

sys.addaudithook(beside)
{"backup": back_up, "restore": restore}[way](source, target)
modes = {path.stat().st_mode & 0o777 for path in (target, *made)}
print(len(made), *modes, *(path.name for path in made if not (path / "state/data/one").exists()))
"""


@pytest.mark.parametrize("way", ["backup", "restore"])
def test_copies_beside_each_other_leave_each_other_alone_at_every_step(state: Path, tmp_path: Path, way: str) -> None:
    before = contents(state)
    manifest = back_up(state, tmp_path / "backup")
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data" / "one").write_text("one")
    target = tmp_path / "goals" / "a"

    done = run(BESIDE, way, state if way == "backup" else tmp_path / "backup", target, other)

    assert done.returncode == 0, done.stderr
    copies, *rest = done.stdout.split()
    assert int(copies) > len(manifest.files)
    assert rest == [str(0o700)]
    assert contents(target / "state" if way == "backup" else target) == before
    assert not list(target.parent.glob(".*"))


def test_a_second_copy_to_one_place_is_refused_and_the_first_is_made(state: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    back_up(state, tmp_path / "first")

    def again(_done: int, _size: int) -> None:
        with pytest.raises(Conflict, match=r"another copy to .*backup is being made"):
            restore(tmp_path / "first", target)

    back_up(state, target, on_progress=again)
    assert read_manifest(target).files


REPLACED = """
import sys
from pathlib import Path
from ratchet.local.local_stack.state import AlreadyRunning, stack_lock

directory, seen = Path(sys.argv[1]), []

def replace(event, _words):
    if event == "fcntl.flock" and not seen:  # opened, not yet locked: a restore puts another folder in its place
        seen.append(event)
        directory.rename(directory.with_name("aside"))
        directory.mkdir()

sys.addaudithook(replace)
with stack_lock(directory):
    try:
        with stack_lock(directory):
            print("two have the lock")
    except AlreadyRunning:
        print("refused")
"""


def test_a_lock_file_that_was_replaced_before_it_was_locked_is_no_lock(state: Path) -> None:
    done = run(REPLACED, state)
    assert done.stdout == "refused\n", done.stderr


STARTED = """
import asyncio, sys
from pathlib import Path
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack

directory = Path(sys.argv[1])

def set_aside(event, words):
    if event == "os.mkdir" and str(words[0]) == str(directory) and directory.exists():
        directory.rename(directory.with_name("state.before-now"))

async def start():
    async with Stack(StackSettings(directory=directory, free_ports=True, only=("s3",))):
        print("started")

sys.addaudithook(set_aside)
asyncio.run(start())
"""


def test_stack_whose_state_is_set_aside_at_its_start_does_not_start_empty(
    state: Path,
) -> None:
    before = contents(state)
    done = run(STARTED, state)
    assert "is one that `ratchet restore --replace` has set aside" in done.stderr
    assert "started" not in done.stdout
    assert not state.exists()
    assert contents(state.with_name("state.before-now")) == before
