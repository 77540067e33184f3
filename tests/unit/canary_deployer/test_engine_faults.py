"""An engine fails calls under traffic: what it does to both arms alike is evidence against neither.

A policy over which it breaks in more trajectories than over stable, by the margin, is rolled back, at whichever call;
one of which it fails far more calls, in whichever way, is held, and leaves no soak without an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ratchet.canary_deployer.domain.gating import PROBE
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult, Rollout, Verdict
from ratchet.canary_deployer.replica_watch import GONE_S, WATCH_S, ReplicaWatch
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import BROKE, NO_MODEL, UNSERVED, EngineInfo
from ratchet.core.errors import Unavailable
from ratchet.core.rules.arms import arm_of
from tests.support.canary_world import CanaryWorld, reward_of, start_of, started_id, turn_of

NO_FAULT: Mapping[str, str] = {}


async def play(world: CanaryWorld, count: int, faults: Mapping[str, str] = NO_FAULT, *, after: int = 0) -> None:
    """Trajectories of one call each, and one step of the controller. All are reported as successes.

    `faults`: by arm what its engine does to a call, `after` so many good ones. Stable answers in the canary's place
    then; stable's own agents ask again.
    """
    route = await world.route()
    messages: list[Any] = []
    for _ in range(count):
        world.played += 1
        trajectory_id = started_id(world.clock(), world.played)
        given = arm_of(route, trajectory_id)
        assert given is not None
        arm, version, weight = given.arm, given.policy.version, given.weight
        messages.append(start_of(trajectory_id, arm, version, weight, route))
        if arm in faults:
            engine = EngineInfo(name="small", fault=faults[arm])
            messages.extend(turn_of(trajectory_id, arm, version, weight, index=index) for index in range(after))
            failed = turn_of(trajectory_id, arm, version, weight, index=after, error="engine: 500", engine=engine)
            messages.append(failed)
            arm, version = ("mixed", 1) if arm == "canary" else (arm, version)
            messages.append(turn_of(trajectory_id, arm, version, weight, index=after + 1))
        else:
            messages.append(turn_of(trajectory_id, arm, version, weight))
        messages.append(reward_of(trajectory_id, success=True))
    world.bus.arrive(messages)
    world.clock.advance(61)
    await world.controller.step()


async def running() -> CanaryWorld:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    return world


async def test_a_canary_whose_model_has_retired_is_held_by_its_first_calls() -> None:
    world = await running()
    await play(world, 40, {"canary": NO_MODEL})
    rollout = await world.rollout()
    assert rollout.state == "held", rollout.reason
    assert "does not have the bundle's model" in rollout.reason
    assert (rollout.statistics.canary.failures, rollout.statistics.canary.first_calls) == (0, 0)


async def test_canary_that_an_engine_does_not_serve_is_held() -> None:
    world = await running()
    for _ in range(20):
        await play(world, 40, {"canary": UNSERVED})
        rollout = await world.rollout()
        if rollout.state == "held":
            break
    assert rollout.state == "held", rollout.reason
    assert "the engine failed calls of" in rollout.reason
    assert "does the policy make it fail?" in rollout.reason
    statistics = rollout.statistics
    assert (statistics.canary.failures, statistics.stable.faulted) == (0, 0)
    assert statistics.canary.faulted == statistics.canary.moved > 0
    evidence = statistics.evidence
    assert max(evidence.promotion.values()) < 1.0
    assert max(evidence.rollback.values()) < 20
    assert evidence.run == 1.0


async def test_canary_that_always_breaks_the_engine_is_rolled_back() -> None:
    """Answers without an end, or a crash: while stable's calls do not fail."""
    world = await running()
    for _ in range(20):
        await play(world, 10, {"canary": BROKE})
        rollout = await world.rollout()
        if not rollout.active:
            break
    assert rollout.state == "rolled_back", rollout.reason
    assert rollout.statistics.canary.failures == 0


async def test_canary_that_breaks_the_engine_on_some_later_calls_is_rolled_back() -> None:
    """No first call fails, and never many trajectories in a row."""
    world = await running()
    for _ in range(30):
        for count, faults in ((6, {"canary": BROKE}), (18, NO_FAULT)):
            if (await world.rollout()).active:  # without one the controller waits for a candidate
                await play(world, count, faults, after=1)
    rollout = await world.rollout()
    assert rollout.state == "rolled_back", rollout.reason
    assert rollout.reason.startswith("worse than the margin")
    assert rollout.statistics.canary.failures == 0


@pytest.mark.parametrize("after", [0, 1])
async def test_an_engine_that_breaks_over_the_calls_of_both_arms_shows_nothing(after: int) -> None:
    """It restarts: the canary's calls have a fallback, and stable's agents ask again."""
    world = await running()
    await play(world, 30)
    await play(world, 80, {"canary": BROKE, "stable": BROKE}, after=after)
    await play(world, 30)
    rollout = await world.rollout()
    assert rollout.state in {"running", "soaking"}, rollout.reason
    assert (rollout.statistics.canary.failures, rollout.statistics.stable.failures) == (0, 0)
    assert min(rollout.statistics.canary.faulted, rollout.statistics.stable.faulted) > 0


@dataclass
class ScriptedGate:
    """Gives the results that a test names, then passes: an outcome, or an error."""

    results: list[str | Exception] = field(default_factory=list)
    replicas: set[str] = field(default_factory=set)
    """Those that answer: named in the evidence of a probe that was played, as the gate does."""
    asked: int = 0

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        self.asked += 1
        result = self.results.pop(0) if self.results else PASSED
        if isinstance(result, Exception):
            raise result
        evidence = {"replicas": dict.fromkeys(self.replicas)} if result == PASSED else {}
        return GateResult("probe", result, f"the probe of {candidate.name} has {result}", evidence)


@dataclass
class Watched:
    """A watch over a world's rollout."""

    world: CanaryWorld
    gate: ScriptedGate = field(default_factory=ScriptedGate)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A watch that knows nothing yet, as after a start of the deployer."""
        self.gate.replicas = self.world.replicas
        self.watch = ReplicaWatch(self.world.context(gates={PROBE: self.gate}))

    async def look(self, rollout: Rollout | None = None) -> Any:
        """The decision after everything that is due has been done."""
        self.world.clock.advance(10 * WATCH_S)
        given = rollout or await self.world.rollout()
        assert await self.watch.look(given) is None
        for _ in range(20):
            await asyncio.sleep(0)
        return await self.watch.look(given)


async def watched() -> Watched:
    return Watched(await running())


async def test_a_replica_that_played_the_probe_at_the_gate_is_not_asked_again() -> None:
    here = await watched()
    for _ in range(3):
        assert await here.look() is None
    assert here.gate.asked == 0


async def test_a_replica_that_was_away_plays_the_probe_whenever_it_comes_back() -> None:
    here = await watched()
    here.world.replicas.add("small at http://b")
    for _ in range(3):
        assert await here.look() is None
    assert here.gate.asked == 1
    here.world.replicas.remove("small at http://b")
    await here.look()
    here.world.replicas.add("small at http://b")
    await here.look()
    await here.look()
    assert here.gate.asked == 2


async def test_after_faults_of_the_engine_the_probe_is_played_once_more() -> None:
    here = await watched()
    await play(here.world, 40, {"canary": UNSERVED})
    rollout = await here.world.rollout()
    assert rollout.statistics.canary.faulted > 0
    await here.look(rollout)
    await here.look(rollout)
    assert here.gate.asked == 1


async def test_a_probe_that_fails_under_traffic_rolls_back() -> None:
    here = await watched()
    here.world.replicas.add("small at http://b")
    here.gate.results = [FAILED]
    decision = await here.look()
    assert decision.verdict is Verdict.ROLL_BACK
    assert decision.reason.startswith("gate probe, repeated under traffic: the probe of")


async def test_a_refusal_is_repeated_until_its_decision_has_been_applied() -> None:
    here = await watched()
    here.world.replicas.add("small at http://b")
    here.gate.results = [FAILED, FAILED]
    decisions = [await here.look(), await here.look()]
    assert [decision.verdict for decision in decisions] == [Verdict.ROLL_BACK] * 2
    assert here.gate.asked == 2


async def test_replica_that_refuses_alone_does_not_decide_while_one_is_away() -> None:
    here = await watched()
    replicas = here.world.replicas
    replicas.clear()
    replicas.add("small at http://b")
    here.gate.results = [FAILED, FAILED]
    assert await here.look() is None
    assert here.watch.fault is not None
    assert "small at http://a passed it, and has not played it now" in here.watch.fault
    replicas.add("small at http://a")
    assert (await here.look()).verdict is Verdict.ROLL_BACK


async def test_replica_that_is_gone_for_good_no_longer_stands_against_a_refusal() -> None:
    here = await watched()
    replicas = here.world.replicas
    replicas.clear()
    replicas.add("small at http://b")
    begun = here.world.clock.monotonic()
    here.gate.results = [FAILED] * 20
    decision = await here.look()
    while decision is None and here.gate.results:
        assert here.watch.fault is not None
        decision = await here.look()
    assert decision is not None
    assert decision.verdict is Verdict.ROLL_BACK
    assert GONE_S <= here.world.clock.monotonic() - begun < 2 * GONE_S


async def test_a_replica_that_comes_back_in_between_has_a_say_again() -> None:
    here = await watched()
    replicas = here.world.replicas
    replicas.add("small at http://b")
    await here.look()
    for _ in range(3):
        replicas.discard("small at http://a")
        here.gate.results = [FAILED] * 3
        for _ in range(3):
            assert await here.look() is None
        here.gate.results = []
        replicas.add("small at http://a")
        await here.look()


async def test_a_replica_that_answered_and_did_not_play_the_probe_is_asked_again() -> None:
    here = await watched()
    here.world.replicas.add("small at http://b")
    here.gate.replicas = {"small at http://a"}
    assert await here.look() is None
    here.gate.replicas = here.world.replicas
    for _ in range(2):
        assert await here.look() is None
    assert here.gate.asked == 2


async def test_new_deployer_plays_the_probe_on_every_replica_under_traffic() -> None:
    here = await watched()
    await play(here.world, 40)
    here.begin()
    for _ in range(2):
        assert await here.look() is None
    assert here.gate.asked == 1


@pytest.mark.parametrize("error", [Unavailable("small at http://b: 503"), Inconclusive("small at http://b: 503", 1)])
async def test_a_probe_that_shows_nothing_is_repeated_and_status_shows_why(error: Exception) -> None:
    here = await watched()
    here.world.replicas.add("small at http://b")
    here.gate.results = [error]
    assert await here.look() is None
    assert here.watch.fault == "the probe is repeated under traffic: small at http://b: 503"
    assert await here.look() is None
    assert here.gate.asked == 2
    assert here.watch.fault is None


async def test_no_replica_that_answers_is_fault_and_no_reason_against_candidate() -> None:
    here = await watched()
    here.world.replicas.clear()
    assert await here.look() is None
    assert here.watch.fault == "the probe is repeated under traffic: no replica answers"
    await here.watch.close()
    assert here.watch.fault is None


async def test_the_controller_rolls_back_what_the_probe_refuses_under_traffic() -> None:
    world = await running()
    world.replicas.add("small at http://b")
    world.gates["probe"].outcome = FAILED
    for _ in range(10):
        world.clock.advance(WATCH_S)
        await world.controller.step()
        await asyncio.sleep(0)
        if not (await world.rollout()).active:
            break
    rollout = await world.rollout()
    assert (rollout.state, rollout.reason) == ("rolled_back", "gate probe, repeated under traffic: probe failed")
    assert (await world.route()).canary is None
    assert await world.stage_of(2) == "rolled_back"
