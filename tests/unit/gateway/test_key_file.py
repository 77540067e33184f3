"""API keys in a file: read again when it changes, and what it held last counts while it cannot be read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.core.contract.state import Key
from ratchet.core.errors import ConfigError
from ratchet.core.rules.access import AGENT_SCOPES, hash_of
from ratchet.gateway.key_file import KeyFile


class Taken:
    """What a key file gave, each time."""

    def __init__(self) -> None:
        self.keys: list[Sequence[Key]] = []

    def __call__(self, keys: Sequence[Key]) -> None:
        self.keys.append(keys)

    def hashes(self) -> list[set[str]]:
        return [{key.hash for key in keys} for keys in self.keys]


def hashes(*keys: str) -> set[str]:
    return {hash_of(key.encode()) for key in keys}


def look(file: KeyFile) -> None:
    asyncio.run(file.look())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("key-1\n\n  key-2  \r\n")
    return file


def test_it_is_read_at_once_and_holds_no_key_in_clear(path: Path) -> None:
    taken = Taken()
    KeyFile(path, taken)
    assert taken.hashes() == [hashes("key-1", "key-2")]
    assert all(set(key.scopes) == set(AGENT_SCOPES) for key in taken.keys[0])
    assert "key-1" not in str(taken.keys[0])


def test_it_is_read_again_only_when_it_has_changed(path: Path) -> None:
    taken = Taken()
    file = KeyFile(path, taken)
    look(file)
    assert len(taken.keys) == 1
    path.write_text("key-3")
    look(file)
    assert taken.hashes()[1:] == [hashes("key-3")]


def test_a_file_of_the_same_length_and_time_that_takes_its_place_is_noticed(path: Path) -> None:
    taken = Taken()
    file = KeyFile(path, taken)
    status, other = path.stat(), path.with_suffix(".new")
    other.write_text(path.read_text().replace("key-1", "key-9"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    look(file)
    assert taken.hashes()[-1] == hashes("key-9", "key-2")


@pytest.mark.parametrize("damage", ["gone", "no text", "a folder"])
def test_while_it_cannot_be_read_its_last_keys_count_and_the_check_fails(path: Path, damage: str) -> None:
    taken = Taken()
    file = KeyFile(path, taken)
    path.unlink()
    if damage == "no text":
        path.write_bytes(b"\xff\xfe\xff")
    elif damage == "a folder":
        path.mkdir()
    look(file)
    assert len(taken.keys) == 1
    assert asyncio.run(file.check()) == f"{path} cannot be read; the keys that it held last count"
    if damage == "a folder":
        path.rmdir()
    path.write_text("key-3")
    look(file)
    assert (taken.hashes()[-1], asyncio.run(file.check())) == (hashes("key-3"), None)


def test_a_file_that_loses_every_key_lets_nobody_in(path: Path) -> None:
    taken = Taken()
    file = KeyFile(path, taken)
    path.write_text("\n")
    look(file)
    assert taken.hashes()[-1] == set()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot read the API keys"), (b"\n \n", "holds no API key"), (b"\xff", "cannot read the API keys")],
    ids=["missing", "empty", "no text"],
)
def test_a_gateway_does_not_start_without_a_key_in_its_file(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        KeyFile(path, Taken())
