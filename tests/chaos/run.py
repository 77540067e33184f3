"""One run: traffic, candidates and faults by a seed, a look at the balance after every few, and what it came to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.bus.tasks import end
from tests.chaos.balance import Balance, settled, until
from tests.chaos.canaries import Canaries, Verdict
from tests.chaos.faults import fault_of
from tests.chaos.schedule import Planned
from tests.chaos.traffic import Traffic, agents
from tests.chaos.world import ROLES, World, running_world
from tests.support.small_disk import small_disk

CHAPTER = 12
"""Faults between two looks at the balance."""
Say = Callable[[str], None]


@dataclass
class Report:
    """What a run came to."""

    seed: int
    faults: list[Planned] = field(default_factory=list[Planned])
    balance: Balance = field(default_factory=Balance)
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    seconds: float = 0.0
    restarts: dict[str, int] = field(default_factory=dict[str, int])
    repeated: int = 0
    """Requests that agents had to repeat."""


async def run(seed: int, faults: Sequence[Planned], folder: Path, say: Say) -> Report:
    """All faults of the seed's schedule under traffic.

    Raises `Stalled` where something that was acknowledged does not come, or a candidate is never decided about, and
    `AssertionError` for one that was judged wrongly.
    """
    report, began = Report(seed), time.monotonic()
    with small_disk(folder / "disk") as disk:
        async with running_world(disk, say) as world, agents(world) as traffic:
            say(f"ready after {time.monotonic() - began:.0f} s")
            canaries = Canaries(world)
            offering = [asyncio.create_task(canaries.offer(role)) for role in ROLES]
            try:
                for place in range(0, len(faults), CHAPTER):
                    await _chapter(world, faults[place : place + CHAPTER], report, say)
                    await _rest(world, traffic, report)
                    say(
                        f"{len(report.faults)} faults, {time.monotonic() - began:.0f} s: {dict(report.balance.figures)}"
                    )
                canaries.stopping = True
                await until(world, canaries.undecided)
            finally:
                await end(*offering)
            await _rest(world, traffic, report)
            report.verdicts, report.repeated = canaries.verdicts, traffic.acknowledged.repeated
            report.restarts = {name: member.restarts for name, member in world.stack.members.items()}
    report.seconds = time.monotonic() - began
    wrong = [verdict for verdict in report.verdicts if verdict.is_wrong]
    assert not wrong, wrong
    return report


async def _chapter(world: World, faults: Sequence[Planned], report: Report, say: Say) -> None:
    for planned in faults:
        fault = fault_of(planned, world)
        say(f"{time.strftime('%H:%M:%S')} {planned}")
        await fault.begin()
        try:
            await asyncio.sleep(planned.lasts_s)
        finally:
            await fault.end()
        report.faults.append(planned)
        await asyncio.sleep(planned.pause_s)


async def _rest(world: World, traffic: Traffic, report: Report) -> None:
    """The balance, while agents rest."""
    traffic.working.clear()
    try:
        report.balance = await settled(world, traffic)
    finally:
        traffic.working.set()
