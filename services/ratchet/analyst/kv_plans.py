"""Plans in bucket `plans`, key `<role>.<plan_id>`: each change is a compare-and-set."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode
from ratchet.core.contract.learning import PLANS, AdaptationPlan

log = structlog.get_logger()


class PlanStore:
    """Raises what `Bucket` does."""

    def __init__(self, bus: Bus) -> None:
        self._plans = Bucket(bus, PLANS, AdaptationPlan)
        self._raw = Bucket(bus, PLANS, msgspec.Raw)

    async def every(self, select: Callable[[str], bool] = lambda _: True) -> list[Entry[AdaptationPlan]]:
        """Plans of the roles that are selected, the oldest first. One that cannot be read is left out, and logged."""
        entries = await self._raw.items(lambda key: select(key.partition(".")[0]))
        readable: list[Entry[AdaptationPlan]] = []
        for key, entry in entries.items():
            try:
                readable.append(Entry(decode(bytes(entry.value), AdaptationPlan), entry.revision))
            except msgspec.DecodeError as error:
                log.error("a plan cannot be read", plan=key, reason=str(error))
        return sorted(readable, key=lambda entry: entry.value.history[0].at)

    async def get(self, role: str, plan_id: str) -> Entry[AdaptationPlan] | None:
        """A plan as it stands."""
        return await self._plans.get(f"{role}.{plan_id}")

    async def create(self, plan: AdaptationPlan) -> int:
        """Write a new plan. Raises `Conflict` where it was drafted already."""
        return await self._plans.create(f"{plan.role}.{plan.plan_id}", plan)

    async def update(self, plan: AdaptationPlan, revision: int) -> int:
        """Write it unless it has changed since `revision`. Raises `Conflict`."""
        return await self._plans.update(f"{plan.role}.{plan.plan_id}", plan, revision)
