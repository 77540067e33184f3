"""A budget for a day, of a judge or of a role's mirrored calls: all processes share it, and make no call that could
exceed it.

What a call may use at most is added to the day's amount, by compare-and-set, before the call is made; afterwards what
it did not use is taken off. A process that is killed in between gives nothing back, so kills cannot exceed the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from ratchet.bus.kv import Bucket
from ratchet.core.errors import BusUnavailable
from ratchet.core.rules.call_budget import NOTHING, Amounts, BudgetSpent
from ratchet.core.service.paid_client import Settle

log = structlog.get_logger()


class DailyLedger:
    """`paid_client.Ledger` of one judge, or of one role's mirrored calls."""

    def __init__(self, bucket: Bucket[Amounts], name: str, limit: Amounts, now: Callable[[], datetime]) -> None:
        """`name`: whose budget it is; its amounts stand under `<name>.<day>`, days in UTC."""
        self._bucket = bucket
        self._name = name
        self.limit = limit
        self._now = now

    async def charged(self) -> Amounts:
        """What today's calls have used or may use. Raises `BusUnavailable`."""
        entry = await self._bucket.get(self._today())
        return entry.value if entry else NOTHING

    async def reserve(self, most: Amounts) -> Settle:
        """See `Ledger`. Raises `BusUnavailable`."""
        key = self._today()

        def grown(before: Amounts | None) -> Amounts:
            charged = (before or NOTHING) + most
            if not charged.within(self.limit):
                raise BudgetSpent
            return charged

        await self._bucket.change(key, grown)

        async def settle(used: Amounts) -> None:
            try:
                await self._bucket.change(key, lambda before: (before or NOTHING) + used - most)
            except BusUnavailable as error:  # tried again it could be given back twice: it stays charged
                log.warning("a call stays charged in full", budget=self._name, reason=str(error))

        return settle

    def _today(self) -> str:
        return f"{self._name}.{self._now().astimezone(UTC):%Y-%m-%d}"
