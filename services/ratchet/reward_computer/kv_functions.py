"""Which reward function is in force: that of the settings until people accept one, from then on what they accepted."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Protocol

from ratchet.bus.kv import Bucket, Entry
from ratchet.core.contract.reward import RewardFunction
from ratchet.reward_computer.domain.function import FunctionRecord
from ratchet.reward_computer.domain.normalization import windows_key
from ratchet.reward_computer.domain.reward import RewardSpec, named

IN_FORCE = "in_force"


class InForce(Protocol):
    """Knows the function that rewards are computed with."""

    async def in_force(self) -> RewardSpec:
        """The function of this moment. Raises `BusUnavailable`."""
        ...


class Functions:
    """`InForce`: the settings' function, and those of the bucket."""

    def __init__(self, bucket: Bucket[FunctionRecord], configured: RewardSpec) -> None:
        self.configured = configured
        self._bucket = bucket
        self._accepted: Entry[RewardSpec] | None = None

    async def in_force(self) -> RewardSpec:
        """See `InForce`. Each batch asks, so that a function counts in all processes as soon as it is accepted."""
        entry = await self._bucket.get(IN_FORCE)
        if entry is None:
            return self.configured
        if self._accepted is None or self._accepted.revision != entry.revision:
            self._accepted = Entry(entry.value.spec(), entry.revision)
        return self._accepted.value

    async def accepted(self) -> RewardSpec | None:
        """What people accepted last; None: nothing yet."""
        entry = await self._bucket.get(IN_FORCE)
        return entry.value.spec() if entry else None

    async def proposed(self, function: RewardFunction) -> FunctionRecord | None:
        """What was recomputed as this function last; None: nothing was."""
        entry = await self._bucket.get(_proposal(function))
        return entry.value if entry else None

    async def propose(self, spec: RewardSpec, since: datetime) -> None:
        """Remember what is recomputed as this function."""
        await self._bucket.put(_proposal(spec.function), FunctionRecord.of(spec, since))

    async def accept(self, spec: RewardSpec) -> None:
        """From now on every process computes rewards with this function."""
        await self._bucket.put(IN_FORCE, FunctionRecord.of(spec))

    async def check(self) -> str | None:
        """A note where the settings describe the accepted function otherwise than it was accepted."""
        accepted, own = await self.in_force(), self.configured
        if accepted.function != own.function or replace(accepted, calibrations={}).digest == own.digest:
            return None
        return (
            f"the settings describe {named(own.function)} otherwise than it was accepted, and what was accepted is in"
            " force: raise RATCHET_REWARD_FUNCTION_VERSION, then `ratchet rewards recompute`"
            " and `ratchet rewards accept`"
        )


def _proposal(function: RewardFunction) -> str:
    return windows_key("proposed", function)
