"""Plans in bucket `plans`, key `<role>.<plan_id>`: each change is a compare-and-set."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode
from ratchet.core.contract.learning import PLANS, AdaptationPlan
from ratchet.core.errors import Unreadable

log = structlog.get_logger()


class PlanStore:
    """Raises what `Bucket` does."""

    def __init__(self, bus: Bus) -> None:
        self._plans = Bucket(bus, PLANS, AdaptationPlan)
        self._raw = Bucket(bus, PLANS, msgspec.Raw)
        self._change: tuple[str, int] | None = None
        """After which the plans were read that are held here."""
        self._held: Mapping[str, Entry[AdaptationPlan]] = {}

    async def every(self, select: Callable[[str], bool] = lambda _: True) -> list[Entry[AdaptationPlan]]:
        """Plans of the roles that are selected, the oldest first. One that cannot be read is left out, and logged."""
        change = await self._raw.newest_change()
        if change != self._change:
            self._held = {key: plan for key, entry in (await self._raw.items()).items() if (plan := _read(key, entry))}
            self._change = change
        selected = [entry for key, entry in self._held.items() if select(key.partition(".")[0])]
        return sorted(selected, key=lambda entry: entry.value.history[0].at)

    async def get(self, role: str, plan_id: str) -> Entry[AdaptationPlan] | None:
        """A plan as it stands."""
        key = f"{role}.{plan_id}"
        entry = await self._plans.get(key)
        if entry is not None and key != f"{entry.value.role}.{entry.value.plan_id}":
            raise Unreadable(key, entry.revision, "it is a plan of another key")
        return entry

    async def create(self, plan: AdaptationPlan) -> int:
        """Write a new plan. Raises `Conflict` where it was drafted already."""
        return await self._plans.create(f"{plan.role}.{plan.plan_id}", plan)

    async def update(self, plan: AdaptationPlan, revision: int) -> int:
        """Write it unless it has changed since `revision`. Raises `Conflict`."""
        return await self._plans.update(f"{plan.role}.{plan.plan_id}", plan, revision)

    async def remove(self, plan: AdaptationPlan, revision: int) -> None:
        """Remove it unless it has changed since `revision`. Raises `Conflict`."""
        await self._plans.delete(f"{plan.role}.{plan.plan_id}", revision)


def _read(key: str, entry: Entry[msgspec.Raw]) -> Entry[AdaptationPlan] | None:
    """A plan; None, and a line in the log, where it is none, or has a time without a zone, which compares to none."""
    try:
        plan = decode(bytes(entry.value), AdaptationPlan)
        if any(step.at.tzinfo is None for step in plan.history):
            raise msgspec.ValidationError("a time of its history has no zone")
        if key != f"{plan.role}.{plan.plan_id}":  # keys tell who may see it
            raise msgspec.ValidationError("it is a plan of another key")
    except msgspec.DecodeError as error:
        log.error("a plan cannot be read", plan=key, reason=str(error))
        return None
    return Entry(plan, entry.revision)
