"""The budget of a search: each call reserves the most that it may use before it is made, and gives back the rest.

A search that is killed cannot say what it has used. So it may use no more than a *lease* that a stored checkpoint
names; the attempt that goes on from that checkpoint counts all of the lease as used. All attempts together never exceed
the budget.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial

from ratchet.core.rules.call_budget import NOTHING, Amounts, BudgetSpent
from ratchet.core.service.paid_client import Settle

BLOCK = 0.1
"""Share of the budget by which a lease is extended, and so the most that a kill costs."""


class Ledger:
    """What the calls of a search use."""

    def __init__(self, limit: Amounts, used: Amounts, extend: Callable[[Amounts], Awaitable[None]]) -> None:
        """`used`: by earlier attempts. `extend`: stores a lease, and returns once nothing can lose it."""
        self.used = used
        self._limit = limit
        self._extend = extend
        self._reserved = NOTHING
        self._leased = self._bound(used)
        self._extending = asyncio.Lock()
        self._changed = asyncio.Condition()

    @property
    def charged(self) -> Amounts:
        """All that calls have used or may have used: of one whose answer never came, its most."""
        return self.used + self._reserved

    async def reserve(self, most: Amounts) -> Settle:
        """See `paid_client.Ledger`. Raises `BudgetSpent` where so much may not be left."""
        async with self._changed:
            while not (self.charged + most).within(self._limit):
                if self._reserved == NOTHING or not (self.used + most).within(self._limit):
                    raise BudgetSpent
                await self._changed.wait()
            self._reserved += most
        try:
            async with self._extending:
                if not self.charged.within(self._leased):
                    # What is charged, and a block more of what has a limit.
                    charged, limit = self.charged, self._limit
                    lease = Amounts(
                        calls=_extended(charged.calls, limit.calls),
                        tokens=_extended(charged.tokens, limit.tokens),
                        usd=_extended(charged.usd, limit.usd),
                    )
                    await self._extend(lease)
                    self._leased = self._bound(lease)
        except BaseException:
            await self._settle(most, NOTHING)
            raise
        return partial(self._settle, most)

    async def _settle(self, most: Amounts, used: Amounts) -> None:
        """The end of a call that had reserved `most`. An answer that reports more than that counts as it reports."""
        async with self._changed:
            self._reserved = self._reserved - most if self._reserved != most else NOTHING
            self.used += used
            self._changed.notify_all()

    def _bound(self, lease: Amounts) -> Amounts:
        """What a lease allows: without end where the budget has none."""
        limit = self._limit
        return Amounts(
            calls=lease.calls,
            tokens=lease.tokens if math.isfinite(limit.tokens) else math.inf,
            usd=lease.usd if math.isfinite(limit.usd) else math.inf,
        )


def _extended(charged: float, limit: float) -> float:
    return charged if math.isinf(limit) else min(limit, charged + BLOCK * limit)
