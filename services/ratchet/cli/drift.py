"""What is watched in the rewards of each role: levels, and the changes of them that were seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.bus.kv import Bucket, Entry
from ratchet.cli.connections import connected, settings_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import print_answer, print_section, print_table
from ratchet.core.contract.state import BASELINES, RewardDrift

if TYPE_CHECKING:
    from ratchet.bus.connection import Bus

COLUMNS = ("role", "function", "metric", "mean", "trajectories", "evidence", "changed")


def print_drift(endpoints: Endpoints, role: str | None, as_json: bool) -> None:
    """What is watched in the rewards of one role or of all. Raises `BusUnavailable`."""

    async def ask() -> list[RewardDrift]:
        async with connected(settings_of(endpoints, role)) as bus:
            return [drift for drift in await read_drift(bus) if role in (None, drift.role)]

    drift = asyncio.run(ask())
    empty = "no rewards are watched yet: the first one of a role begins it"
    print_answer({"rewards": drift}, as_json, lambda: print_table(COLUMNS, _rows(drift), empty))


async def read_drift(bus: Bus) -> list[RewardDrift]:
    """What the reward computer last wrote of all roles; a value that cannot be read is left out."""
    entries = await Bucket(bus, BASELINES, RewardDrift).below("drift")
    return [entry.value for entry in entries.values() if isinstance(entry, Entry)]


def show_changes(drift: Sequence[RewardDrift]) -> None:
    """The metrics whose level has changed, if any."""
    print_section(COLUMNS, [row for row in _rows(drift) if row[-1]])


def _rows(drift: Sequence[RewardDrift]) -> list[tuple[object, ...]]:
    return [
        (
            of.role,
            of.function,
            metric.metric,
            None if metric.mean is None else f"{metric.mean:.3g}",
            metric.trajectories,
            f"{metric.evidence:.2f}",
            metric.alert.summary if metric.alert is not None and not metric.alert.cleared else None,
        )
        for of in drift
        for metric in of.metrics
    ]
