"""The effect of a plan on a real ClickHouse: of starts that matched and whose outcome is due, one value each."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from ratchet.analyst.clickhouse_episodes import StoredEpisodes
from ratchet.analyst.effects import Effects, stored_episodes
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message, named_id
from ratchet.core.contract.learning import ArmEffect
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    PolicyClaim,
    Start,
    TaskContext,
    Trajectory,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.service.settings import SharedSettings
from tests.support.adaptation import REFUNDS, plan_of
from tests.support.canary_world import started_id
from tests.support.coordinator import stored
from tests.support.running import connected, prepared_objects, prepared_warehouse
from tests.support.training import trajectory

ROLE, ROLLOUT = "shop", named_id("rollout", 1)
BEGAN = datetime.now(UTC).replace(microsecond=0) - timedelta(days=40)
"""By the gateway's clock, which goes wrong."""
HOUR = timedelta(hours=1)
SIZE = 480


def run(name: str, question: str, *, success: bool, at: datetime, recorded_as: str | None = None) -> Trajectory:
    """A run about a question."""
    turn = TrajectoryTurn(
        turn_id=1,
        timestamp=at,
        observation=Observation(type="user_message", content=question),
        action=Action(type="response", raw_response="answer"),
        result=TurnResult(success=True),
    )
    made = trajectory(name, success=success, at=at, role=ROLE, recorded_as=recorded_as)
    return replace(made, turns=[turn], task_context=TaskContext(task_id="task", instructions="Help."))


def start(name: str, arm: str, at: datetime, rollout_id: str = ROLLOUT) -> Start:
    """A draw."""
    claim = PolicyClaim(role=ROLE, version=2 if arm == "canary" else 1, digest="ab" * 32, arm=arm, weight=0.5)
    return Start(trajectory_id=name, timestamp=at, policy=claim, role=ROLE, rollout_id=rollout_id)


def rollout() -> list[Message]:
    """Half of the starts are about refunds, which fail at stable and succeed at the canary; each has a sub-agent, whose
    run succeeds. Others were drawn in another rollout."""
    drawn, facts = random.Random(1), list[Message]()
    for number in range(SIZE):
        at = BEGAN + timedelta(seconds=number)
        name = started_id(at, number)
        arm = drawn.choice(["stable", "canary"])
        about = "refund of an order" if number % 2 else "parcel of an order"
        success = drawn.random() < (0.9 if number % 2 == 0 or arm == "canary" else 0.1)
        facts += [start(name, arm, at), run(name, about, success=success, at=at)]
        facts.append(run(named_id("child", number), about, success=True, at=at, recorded_as=name))
    return facts + others(SIZE, named_id("rollout", 2))


def others(first: int, rollout_id: str) -> list[Message]:
    """40 refunds that fail at the canary of a rollout."""
    facts = list[Message]()
    for number in range(first, first + 40):
        name = started_id(BEGAN, number)
        facts += [start(name, "canary", BEGAN, rollout_id), run(name, "refund", success=False, at=BEGAN)]
    return facts


@pytest.mark.slow
async def test_the_effect_is_of_the_starts_of_a_rollout(shared_settings: SharedSettings) -> None:
    prepared_objects(shared_settings)
    facts, late = rollout(), others(SIZE + 40, ROLLOUT)
    runs = [fact for fact in facts + late if isinstance(fact, Trajectory)]
    async with (
        prepared_warehouse(shared_settings) as warehouse,
        connected(shared_settings, "analyst") as bus,
        stored(shared_settings, bus, runs),
    ):

        async def publish(starts: list[Message], total: int) -> None:
            await bus.publish_all(starts)

            async def all_there() -> bool:
                rows = await warehouse.rows("SELECT uniqExact(trajectory_id) AS n FROM starts")
                return int(rows[0]["n"]) == total

            await eventually(all_there)

        await publish([fact for fact in facts if isinstance(fact, Start)], SIZE + 40)
        due = datetime.now(UTC)
        await publish([fact for fact in late if isinstance(fact, Start)], SIZE + 80)
        effects = Effects(warehouse, stored_episodes(StoredEpisodes(warehouse)))
        plan = replace(plan_of(), triggers=(REFUNDS,))
        seen = await effects.measure(plan, ROLLOUT, BEGAN, due + HOUR, HOUR)
    assert isinstance(seen, ArmEffect), seen
    assert seen.stable + seen.canary == SIZE // 2
    assert seen.low < -0.8 < seen.high < -0.5
