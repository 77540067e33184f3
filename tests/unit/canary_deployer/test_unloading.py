"""Engines are freed of policies that no route names: not too early, and of no one else's."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ratchet.bus.testing import START
from ratchet.canary_deployer.unloading import Unloader, unneeded
from ratchet.core.contract.state import CanaryRoute, PolicyVersion, Route
from ratchet.core.errors import Unavailable
from tests.support.canary_world import ROLE, policy, served
from tests.support.scoring_engine import Fleet, ScoringEngine

CANARY = CanaryRoute(rollout_id="r", policy=served(4), salt="s", schedule=[], lease=1)
ROUTE = Route(role=ROLE, stable=served(3), previous=served(2), canary=CANARY)
STAGES = {1: "archived", 2: "archived", 3: "stable", 4: "canary", 5: "registered", 6: "refused", 7: "rolled_back"}
FOREIGN = ["base", "other@1-11111111", f"{ROLE}@1-ffffffff", f"{ROLE}@99-99999999", ROLE]


@dataclass
class Registry:
    """One role's route and policies."""

    known: Route | None = ROUTE
    stages: dict[int, str] = field(default_factory=lambda: dict(STAGES))
    error: Exception | None = None

    async def roles(self) -> list[str]:
        return [ROLE]

    async def route(self, role: str) -> Route | None:
        if self.error is not None:
            raise self.error
        return self.known

    async def versions(self, role: str) -> list[PolicyVersion]:
        return [policy(version, stage=stage) for version, stage in self.stages.items()]


class World:
    def __init__(self, after_s: float = 60.0) -> None:
        self.registry = Registry()
        self.held = [policy(version).name for version in STAGES]
        self.fleet = Fleet({host: ScoringEngine(resident=[*FOREIGN, *self.held]) for host in "ab"})
        self.now = 0.0
        self.unloader = Unloader(self.fleet.served(), self.registry, after_s, lambda: self.now)

    async def sweep_at(self, now: float) -> list[set[str]]:
        """What both engines have lost by then."""
        self.now = now
        await self.unloader.sweep()
        return [set(self.held) - set(engine.resident) for engine in self.fleet.engines.values()]


GONE = {policy(version).name for version in (1, 6, 7)}


def test_what_a_route_names_is_needed_whatever_its_stage() -> None:
    versions = [policy(version, stage="archived") for version in STAGES]
    assert unneeded(ROUTE, versions) == {policy(version).name for version in (1, 5, 6, 7)}
    assert unneeded(None, versions[:1]) == {policy(1).name}


def test_the_policy_behind_the_name_of_a_variant_is_needed() -> None:
    versions = [policy(version, stage="archived", algorithm="dpo", created_at=START) for version in (1, 6)]
    assert unneeded(ROUTE, versions) == {policy(1).name}


async def test_policies_leave_every_replica_once_long_enough_unneeded() -> None:
    here = World()
    assert await here.sweep_at(0) == [set(), set()]
    assert await here.sweep_at(59) == [set(), set()]
    assert await here.sweep_at(60) == [GONE, GONE]
    assert all(set(FOREIGN) <= set(engine.resident) for engine in here.fleet.engines.values())
    asked = [engine.named("/v1/unload_lora_adapter") for engine in here.fleet.engines.values()]
    await here.sweep_at(500)
    assert [engine.named("/v1/unload_lora_adapter") for engine in here.fleet.engines.values()] == asked


async def test_a_policy_that_is_needed_again_starts_anew() -> None:
    here = World()
    await here.sweep_at(0)
    here.registry.stages[6] = "registered"
    await here.sweep_at(30)
    here.registry.stages[6] = "refused"
    lost, _ = await here.sweep_at(60)
    assert lost == GONE - {policy(6).name}
    lost, _ = await here.sweep_at(120)
    assert lost == GONE


async def test_a_new_leader_waits_as_long_again() -> None:
    here = World()
    await here.sweep_at(0)
    here.unloader = Unloader(here.fleet.served(), here.registry, 60.0, lambda: here.now)
    assert await here.sweep_at(61) == [set(), set()]
    assert await here.sweep_at(121) == [GONE, GONE]


async def test_replica_that_is_away_or_fails_is_swept_later_alone() -> None:
    here = World(after_s=0)
    here.fleet.away.add("a")
    assert await here.sweep_at(0) == [set(), GONE]
    here.fleet.away.clear()
    here.fleet.engines["a"].key = "another"
    assert await here.sweep_at(1) == [set(), GONE]
    here.fleet.engines["a"].key = None
    assert await here.sweep_at(2) == [GONE, GONE]


async def test_nothing_leaves_while_routes_cannot_be_read() -> None:
    here = World(after_s=0)
    here.registry.error = Unavailable("the broker does not answer")
    with pytest.raises(Unavailable):
        await here.sweep_at(0)
    assert not any(engine.asked for engine in here.fleet.engines.values())
