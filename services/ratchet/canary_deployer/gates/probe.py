"""Gate `probe`: the engine finds the policy by its name, and compares log-probabilities on its probe if it can.

An engine that compares nothing (vLLM), or a manifest without a probe, passes as loaded: reason and evidence say that
nothing was compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.gating import PROBE
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Engine, GateTools
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected

NAME = PROBE


@dataclass(frozen=True, slots=True)
class ProbeGate:
    """Reports how the engine loaded the policy."""

    engine: Engine

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Ask for the candidate by name, and for stable too, so that both are resident before traffic moves."""
        evidence = {"policy": candidate.name, "digest": candidate.digest, "uri": candidate.uri}
        try:
            loaded = await self.engine.resolve(candidate)
        except Rejected as error:
            return GateResult(NAME, FAILED, f"the engine cannot serve it: {error}", evidence)
        if stable is not None:
            await self.engine.resolve(stable)
        result = (
            "its log-probabilities on the probe match" if loaded.compared else "log-probabilities were not compared"
        )
        return GateResult(NAME, PASSED, f"loaded; {result}", {**evidence, "compared": loaded.compared})


def build(tools: GateTools) -> ProbeGate:
    return ProbeGate(tools.engine)
