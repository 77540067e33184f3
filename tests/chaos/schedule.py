"""From a seed to a schedule of faults: what is hit, for how long, and the pause before the next one."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

SERVICES = ("gateway", "trajectory_collector", "reward_computer", "rl_coordinator", "canary_deployer")
SERVERS = ("nats", "clickhouse", "s3")
EVENTS = ("RL_TRAJECTORIES", "RL_TURNS", "RL_STARTS", "RL_FEEDBACK", "RL_REWARDS")
"""Streams that traffic fills."""
KILL, FREEZE, CUT, FULL_DISK, DELETE, CLOCK = "kill", "freeze", "cut", "full disk", "delete", "clock"
KINDS: dict[str, Sequence[str]] = {
    KILL: (*SERVICES, *SERVERS),
    FREEZE: (*SERVICES, *SERVERS),
    CUT: tuple(f"{way} {server}" for way in ("reset", "silence") for server in SERVERS),
    FULL_DISK: ("disk",),
    DELETE: (*EVENTS, *(f"consumer of {stream}" for stream in EVENTS)),
    CLOCK: SERVICES,
}
"""By kind of fault: what it may hit."""
STEPS_S = (-7200, -600, -30, 30, 600, 7200)
"""How far a clock is set."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come."""

    kind: str
    target: str
    lasts_s: float
    pause_s: float
    """From its end to the next one: services may still be at their recovery from this one."""
    draw: float
    """In 0..1: what is left to choose when it begins."""

    def __str__(self) -> str:
        return f"{self.kind} {self.target} {self.lasts_s:.0f} s"


def schedule(seed: int, number: int, kinds: Collection[str] = tuple(KINDS)) -> list[Planned]:
    """`number` faults. Any `len(kinds)` in a row, counted from the first, are one of each kind."""
    chance = random.Random(seed)
    planned: list[Planned] = []
    while len(planned) < number:
        for kind in chance.sample(sorted(kinds), len(kinds)):
            target, lasts_s, pause_s = chance.choice(KINDS[kind]), chance.uniform(1, 9), chance.uniform(1, 7)
            planned.append(Planned(kind, target, lasts_s, pause_s, chance.random()))
    return planned[:number]
