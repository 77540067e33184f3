"""Gate `approval`: where the installation asks for it, an operator has to agree to every candidate."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.gating import APPROVAL
from ratchet.canary_deployer.domain.rollout import NEEDS_APPROVAL, NOT_RUN, GateResult
from ratchet.core.contract.state import PolicyVersion


@dataclass(frozen=True, slots=True)
class ApprovalGate:
    """Asks an operator where that is required. Elsewhere it does not run, and another gate may still ask."""

    required: bool

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """The same for every policy."""
        del stable
        if self.required:
            return GateResult(APPROVAL, NEEDS_APPROVAL, f"an operator has to approve {candidate.name}")
        why = "RATCHET_CANARY_APPROVAL is off: no candidate waits for an operator unless another gate asks about it"
        return GateResult(APPROVAL, NOT_RUN, why)
