"""Rollouts whose calls fail now and then and are answered by another, through the product's fold and verdicts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import msgspec

from ratchet.canary_deployer.domain.outcomes import Call, Score, fold
from ratchet.canary_deployer.domain.rollout import Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.verdicts import decide
from ratchet.messages.routing import CANARY, MIXED, STABLE
from tests.support.canary_world import ROLE, served
from tests.support.fake_clock import START

CALLS = 6
"""Model calls of a trajectory."""
STABLE_VERSION, CANARY_VERSION = 1, 2
LOOK_EVERY = 10
"""Trajectories between two looks: the tests hold however often one looks."""


@dataclass(frozen=True)
class Faults:
    """How often a single call fails, and who steps in: stable always does for the canary."""

    stable_calls: float
    canary_calls: float
    upstream: bool
    """Whether another server steps in for stable; without one its trajectory ends there, as a failure."""
    tasks: float = 0.05
    """Trajectories that fail although every call was answered, on either arm."""


def without_waiting(margin: float) -> Rules:
    """One stage that is left as soon as the evidence allows: half of the trajectories, so that little is needed."""
    return Rules(stages=(Stage(0.5, 0, 10),), margin=margin)


def play(faults: Faults, rules: Rules, *, longest: int, seed: int) -> Verdict:
    """How a rollout ends; `HOLD` when it is undecided after `longest` trajectories. No trip wire is looked at."""
    draw = random.Random(seed)
    rollout = Rollout(
        rollout_id="r",
        role=ROLE,
        state=State.RUNNING,
        candidate=served(CANARY_VERSION),
        stable=served(STABLE_VERSION),
        created_at=START,
        actor="test",
        stage_since=START,
    )
    for start in range(0, longest, LOOK_EVERY):
        weight = rules.stages[rollout.stage].weight
        stories = (_trajectory(float(n), weight, faults, draw) for n in range(start, start + LOOK_EVERY))
        watch = fold(rollout.watch, chain.from_iterable(stories), rollout.compared, rules)
        rollout = msgspec.structs.replace(rollout, watch=watch)
        decision = decide(rollout, None, rules)
        if decision is not None:
            return decision.verdict
    return Verdict.HOLD


def _trajectory(at: float, weight: float, faults: Faults, draw: random.Random) -> Iterator[Call | Score]:
    """The turns that a gateway records and the reward that follows, in order."""
    name, canary = f"t{at}", draw.random() < weight
    arm, version = (CANARY, CANARY_VERSION) if canary else (STABLE, STABLE_VERSION)
    rate = faults.canary_calls if canary else faults.stable_calls
    failed = draw.random() < faults.tasks
    for index in range(CALLS):
        began, first = at + index / 10, index == 0
        if arm != MIXED and draw.random() < rate:
            yield Call(name, at, first, arm, version, weight, True, None, began, began + 0.05)
            if not canary and not faults.upstream:
                failed = True
                break
            arm, version = MIXED, STABLE_VERSION
        yield Call(name, at, first, arm, version, weight, False, draw.lognormvariate(4.0, 0.4), began, began + 0.05)
    yield Score(name, at, 0, failed, 0.0 if failed else draw.uniform(0.75, 0.92), None, False)
