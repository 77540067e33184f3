"""What the gates say of a policy lies in the object store, whatever happens to that meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.canary_deployer.s3_validations import Validations
from ratchet.core.errors import ObjectsUnavailable
from tests.support.canary_world import CanaryWorld, policy
from tests.support.object_store import MemoryStore


async def refused() -> CanaryWorld:
    """A world whose second policy has failed a gate."""
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["heldout_tasks"].outcome = "failed"
    await world.until("refused")
    return world


def stored(store: MemoryStore) -> dict[str, Any]:
    return {uri: json.loads(body) for uri, (body, _) in store.blobs.items()}


async def test_result_of_the_gates_is_stored_once_under_the_policys_digest() -> None:
    world, store = await refused(), MemoryStore()
    validations = Validations(world.policies, store)
    await validations.write()
    uri = f"s3://test/validations/{policy(2).digest}.json"
    assert {*stored(store)} == {uri}
    result = stored(store)[uri]
    assert (result["name"], result["stage"]) == (policy(2).name, "refused")
    assert result["gate"]["heldout_tasks"]["outcome"] == "failed"
    written_at = store.blobs[uri]
    store.later(days=1)
    await validations.write()
    assert store.blobs[uri] == written_at


async def test_a_store_that_is_away_costs_no_verdict_and_gets_the_result_later() -> None:
    world, store = await refused(), MemoryStore()
    store.failing = "validations/"
    validations = Validations(world.policies, store)
    with pytest.raises(ObjectsUnavailable):
        await validations.write()
    assert await world.stage_of(2) == "refused"
    store.failing = None
    await validations.write()
    assert len(store.blobs) == 1
