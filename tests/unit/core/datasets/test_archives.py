"""Erasing in the archive: beside damaged files and others who erase, and along runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from ratchet.core.datasets.archives import ArchivedRow, ArchiveFile, Archives, Folder, Pairs
from ratchet.core.errors import ObjectsUnavailable
from ratchet.core.stores.objects import ObjectRef, Objects
from ratchet.trajectory_collector.archiving import erase_archived
from tests.support.blobs import MemoryBlobs

ROLE, DAY = "support", date(2026, 1, 1)


def archives_of(blobs: MemoryBlobs) -> Archives:
    return Archives(cast(Objects, blobs))


def row(trajectory_id: str, **members: str | None) -> ArchivedRow:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    who = dict.fromkeys(("causation_id", "user_ref", "session_id", "agent_id")) | members
    own = {"event_id": trajectory_id, "generation": "1", "sequence": 1, "correlation_id": trajectory_id}
    values: dict[str, Any] = {**own, **who, "at": at, "stored_at": at, "body": f"words of {trajectory_id}"}
    return ArchivedRow(trajectory_id=trajectory_id, **values)


def stored(blobs: MemoryBlobs, *rows: ArchivedRow, table: str = "trajectories") -> ArchiveFile:
    with archives_of(blobs).writer(Folder(table, ROLE, DAY)) as writer:
        writer.add(rows)
        return writer.store()


def held(blobs: MemoryBlobs) -> set[str]:
    archives = archives_of(blobs)
    return {own.trajectory_id for file in archives.files() for own in archives.rows(file)}


def pairs(names: Iterable[str]) -> Pairs:
    return {(ROLE, name) for name in names}


def damaged(body: bytes, place: float) -> bytes:
    if place < 0:
        return body[: len(body) // 2]
    index = int(place * len(body))
    return body[:index] + bytes([body[index] ^ 0x10]) + body[index + 1 :]


@pytest.mark.parametrize("place", [-1, *(step / 20 for step in range(20))])
def test_damaged_file_is_named_and_holds_up_no_erasure(place: float) -> None:
    blobs = MemoryBlobs()
    file = stored(blobs, row("a", user_ref="mia"), row("b"))
    stored(blobs, row("c", user_ref="mia"), row("d"))
    blobs.blobs[file.uri] = broken = damaged(blobs.blobs[file.uri], place)
    archives = archives_of(blobs)
    theirs = archives.ids_of("user_ref", "mia")
    assert theirs - pairs("a") == pairs("c")
    assert archives.erase(pairs("ac")).damaged == [file.uri]
    assert blobs.blobs.pop(file.uri) == broken
    assert held(blobs) == {"d"}


class Failing(MemoryBlobs):
    """A store that has lost an object, or is away."""

    lost, is_away = "", False

    def ping(self) -> None:
        if self.is_away:
            raise ObjectsUnavailable("no answer")

    def get_part(self, uri: str, begin: int, size: int) -> bytes:
        if self.is_away or uri == self.lost:
            raise ObjectsUnavailable("no answer")
        return super().get_part(uri, begin, size)


def test_file_that_the_store_cannot_give_holds_up_no_erasure() -> None:
    blobs = Failing()
    blobs.lost = stored(blobs, row("a")).uri
    stored(blobs, row("b"))
    assert archives_of(blobs).erase(pairs("ab")) == (1, set(), [blobs.lost])
    blobs.is_away = True
    with pytest.raises(ObjectsUnavailable):
        archives_of(blobs).erase(pairs("ab"))


def test_damaged_file_that_is_put_back_is_read_again() -> None:
    blobs = MemoryBlobs()
    file = stored(blobs, row("a"))
    whole, blobs.blobs[file.uri] = blobs.blobs[file.uri], b"PAR1"
    archives = archives_of(blobs)
    assert archives.damaged([file.uri]) == [file.uri]
    blobs.blobs[file.uri] = whole
    assert archives.damaged([file.uri]) == []


def test_runs_are_followed_to_what_names_nobody() -> None:
    blobs = MemoryBlobs()
    stored(
        blobs, row("run"), row("child", parent_trajectory_id="spoken"), row("other"), row("its", recorded_as="other")
    )
    stored(blobs, row("spoken", recorded_as="run", session_id="s"), row("beside", recorded_as="run"))
    stored(blobs, row("deeper", parent_trajectory_id="child"), row("above"), table="turns")
    stored(blobs, row("deeper", parent_trajectory_id="child"), row("hot child", parent_trajectory_id="hot"))
    archives = archives_of(blobs)
    run = ("run", "spoken", "beside", "child", "deeper")
    assert archives.ids_of("session_id", "s") == pairs(run)
    assert archives.ids_of("session_id", "s", pairs(["hot"])) == pairs([*run, "hot child"])
    assert archives.ids_of("trajectory_id", "child") == pairs(["child", "deeper"])
    assert archives.ids_of("trajectory_id", "nothing") == set()


class Tombstones:
    """The ids that are erased."""

    def __init__(self) -> None:
        self.listed = Pairs()

    async def among(self, names: Collection[str]) -> Pairs:
        return {pair for pair in self.listed if pair[1] in names}


class Shared(MemoryBlobs):
    """A store at which another eraser works, wholly before one call."""

    def __init__(self, blobs: dict[str, bytes], tombstones: Tombstones, call: int) -> None:
        super().__init__()
        self.blobs, self.call, self.tombstones = blobs, call, tombstones
        self.other = MemoryBlobs()
        self.other.blobs = blobs

    def _count(self) -> None:
        self.call -= 1
        if self.call == -1:
            asyncio.run(erased_by(self.other, self.tombstones, "b"))

    def objects(self, prefix: str) -> Any:
        self._count()
        return super().objects(prefix)

    def get_part(self, uri: str, begin: int, size: int) -> bytes:
        self._count()
        return super().get_part(uri, begin, size)

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef:
        self._count()
        return super().put_file(path, prefix, suffix)

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None:
        self._count()
        super().get_file(uri, path, sha256, size)

    def remove(self, uri: str) -> None:
        self._count()
        super().remove(uri)


async def erased_by(blobs: MemoryBlobs, tombstones: Tombstones, name: str) -> None:
    tombstones.listed |= pairs(name)
    assert not (await erase_archived(archives_of(blobs), cast(Any, tombstones), pairs(name))).damaged


async def test_two_erasers_at_once_lose_no_row_and_leave_none() -> None:
    call, was_last = 0, False
    while not was_last:
        tombstones, kept = Tombstones(), MemoryBlobs()
        stored(kept, *map(row, "abc"))
        stored(kept, *map(row, "bd"))
        store = Shared(kept.blobs, tombstones, call)
        await erased_by(store, tombstones, "a")
        was_last = store.call >= 0
        assert held(kept) == ({"b", "c", "d"} if was_last else {"c", "d"}), call
        call += 1
    assert call > 10
