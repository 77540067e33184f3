"""The directory of a demo, which is emptied at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.errors import Conflict
from ratchet.local.demo.plan import HELD_OUT
from ratchet.local.demo.run import empty
from ratchet.local.local_stack.state import LOCK_FILE


@pytest.mark.parametrize("name", ["thesis.txt", "version.json", "data/nats/stream"])
def test_demo_empties_no_directory_but_that_of_a_demo(tmp_path: Path, name: str) -> None:
    kept = tmp_path / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("mine")
    with pytest.raises(Conflict, match="name a new one with `--dir`"):
        empty(tmp_path)
    assert kept.read_text() == "mine"


def test_demo_forgets_an_earlier_one(tmp_path: Path) -> None:
    for path in (HELD_OUT, Path("logs", "up.log"), Path("version.json")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    empty(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    empty(tmp_path)
