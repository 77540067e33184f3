"""Sweeps on the real object store: what was set aside comes back when it is read."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus
from ratchet.core.errors import NotFound
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.listing import StoredObject
from ratchet.core.stores.objects import Objects
from tests.support.coordinator import coordinating
from tests.support.running import connected, prepared_objects, prepared_warehouse


@pytest.fixture
def objects(shared_settings: SharedSettings) -> Objects:
    return prepared_objects(shared_settings)


def listed(objects: Objects, uri: str) -> StoredObject:
    return next(one for one in objects.objects("blobs/") if one.uri == uri)


def test_what_was_set_aside_is_read_until_it_is_removed(objects: Objects, tmp_path: Path) -> None:
    kept, lost = objects.put(b"kept", "blobs"), objects.put(b"lost", "blobs")
    before = objects.now()
    for ref in (kept, lost):
        assert objects.set_aside(listed(objects, ref.uri))
    assert objects.objects("blobs/") == []
    assert [one.at >= before for one in objects.aside()] == [True, True]
    assert objects.get_aside(kept.uri) == b"kept"
    objects.get_file(kept.uri, tmp_path / "kept", hashlib.sha256(b"kept").hexdigest())
    assert objects.exists(lost.uri)
    (before_it_was_read,) = [one for one in objects.aside() if one.uri == lost.uri]
    earlier = StoredObject(lost.uri, 4, before_it_was_read.at.replace(year=2020))
    assert not objects.remove_aside(earlier)
    assert objects.set_aside(listed(objects, lost.uri))
    assert objects.remove_aside(next(one for one in objects.aside() if one.uri == lost.uri))
    assert not objects.exists(lost.uri)
    with pytest.raises(NotFound):
        objects.get(lost.uri)
    assert objects.get(kept.uri) == b"kept"


def test_what_was_set_aside_is_listed_where_it_was_once_and_beside_others(objects: Objects) -> None:
    ref = objects.put(b"kept", "policies", ".json")
    assert objects.set_aside(objects.objects("policies/")[0])
    assert objects.find(f"policies/{ref.sha256[:8]}") == [ref.uri]
    other = objects.put(b"another", "policies", ".json")
    assert objects.find("policies/") == sorted([ref.uri, other.uri])
    assert objects.get(ref.uri) == b"kept"
    assert objects.find("policies/") == sorted([ref.uri, other.uri])


def test_an_object_that_was_written_again_since_it_was_listed_stays(objects: Objects) -> None:
    ref = objects.put(b"kept", "blobs")
    seen = listed(objects, ref.uri)
    earlier = StoredObject(seen.uri, seen.size, seen.at.replace(year=2020))
    assert not objects.set_aside(earlier)
    assert objects.aside() == []


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


async def test_the_coordinator_sweeps_when_asked(shared_settings: SharedSettings, bus: Bus, objects: Objects) -> None:
    await asyncio.to_thread(objects.put, b"young", "blobs")
    async with coordinating(shared_settings, bus) as workshop:
        answer = (await workshop.api.post("/v1/storage/sweep")).json()
        assert answer == answer | {"dry_run": False, "objects": 1, "bytes": 5, "set_aside": {}}
        assert (await workshop.api.post("/v1/storage/sweep?dry=true")).status_code == 422
