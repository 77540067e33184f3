"""Gates that ask engines: of a bundle they get the adapter or model that answers, under its own name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, GateResult
from ratchet.canary_deployer.gates.base import Gate
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected

NO_ENGINE = "an upstream answers for it, which is no engine of Ratchet's: there is nothing to compare"


@dataclass(frozen=True, slots=True)
class OnWeights:
    """A gate of weights, for policies of every kind."""

    name: str
    gate: Gate
    weights_of: Callable[[PolicyVersion], Awaitable[PolicyVersion | None]]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """It does not run where no engine holds the candidate."""
        try:
            weights = await self.weights_of(candidate)
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(self.name, FAILED, f"its model cannot be read: {error}")
        if weights is None:
            return GateResult(self.name, NOT_RUN, NO_ENGINE)
        return await self.gate.check(weights, await self._of_stable(stable))

    async def _of_stable(self, stable: PolicyVersion | None) -> PolicyVersion | None:
        try:
            return await self.weights_of(stable) if stable is not None else None
        except (Rejected, NotFound, DigestMismatch):
            return None
