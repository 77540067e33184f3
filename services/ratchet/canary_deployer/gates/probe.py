"""Gate `probe`: the engine loads the policy by digest and finds the trainer's own log-probabilities on the probe."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Engine, GateTools
from ratchet.kernel.errors import Rejected
from ratchet.messages.state import PolicyVersion

NAME = "probe"


@dataclass(frozen=True, slots=True)
class ProbeGate:
    """The engine checks checksum, base and probe while it loads; the gate reports what it said."""

    engine: Engine

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Load the candidate, and stable too, so that both are resident before traffic moves."""
        evidence = {"policy": candidate.name, "digest": candidate.digest, "uri": candidate.uri}
        try:
            await self.engine.load(candidate)
        except Rejected as error:
            return GateResult(NAME, FAILED, f"the engine cannot serve it: {error}", evidence)
        if stable is not None:
            await self.engine.load(stable)
        return GateResult(NAME, PASSED, "loaded, and its probe log-probabilities match", evidence)


def build(tools: GateTools) -> ProbeGate:
    return ProbeGate(tools.engine)
