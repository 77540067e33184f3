"""Gate `warmup`: the policy answers a few prompts on every replica, and every token has a finite log-probability.

A bundle is asked through the gateway instead, where its instructions are applied; a variable has its name as its value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import WARMUP
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import BundleTools, LoggedPrompt
from ratchet.canary_deployer.replicas import Replica, ReplicaChecks
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected, Unavailable

TRIES = 3
"""Output that is broken in each of them is no chance fault."""


@dataclass(frozen=True, slots=True)
class WarmupGate:
    """Catches NaN weights and broken output, which log-probabilities of one probe can miss."""

    checks: ReplicaChecks
    prompts: Sequence[str]
    bundles: BundleTools | None

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Ask every prompt of every replica, or of the gateway."""
        if candidate.kind == BUNDLE and self.bundles is not None:
            return await self._through_gateway(candidate, self.bundles)
        try:
            warmed = await self.checks.on_each(candidate, stable, self._warm)
        except Rejected as error:
            return GateResult(WARMUP, FAILED, f"it does not answer as it should: {error}")
        replicas = {name: {"prompts": len(self.prompts), "tokens": tokens} for name, tokens in warmed.results.items()}
        evidence: JsonObject = {"replicas": replicas, "away": list(warmed.away)}
        tokens = sum(warmed.results.values())
        answered = f"{len(self.prompts)} prompts answered by {len(replicas)} replicas, {tokens} tokens, all finite"
        return GateResult(WARMUP, PASSED, answered, evidence)

    async def _through_gateway(self, candidate: PolicyVersion, tools: BundleTools) -> GateResult:
        try:
            instructions = (await tools.bundle_of(candidate)).instructions
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(WARMUP, FAILED, f"its bundle cannot be read: {error}")
        metadata: JsonObject = {name: name for name in instructions.variables} if instructions else {}
        for number, prompt in enumerate(self.prompts, 1):
            asked = LoggedPrompt(
                turn_id="", trajectory_id="", messages=[{"role": "user", "content": prompt}], metadata=metadata
            )
            refusal = await tools.asking.refusal(candidate, asked, None)
            if refusal is not None:
                return GateResult(WARMUP, FAILED, f"it does not answer prompt {number} as it should: {refusal}")
        answered = f"{len(self.prompts)} prompts answered through the gateway"
        return GateResult(WARMUP, PASSED, answered, {"prompts": len(self.prompts)})

    async def _warm(self, replica: Replica, model: str) -> int:
        """How many tokens a replica answered.

        Raises `Rejected` for output that is broken in every try, `Unavailable` for one that is broken in some.
        """
        tokens = 0
        for number, prompt in enumerate(self.prompts, 1):
            logprobs = await replica.ask(model, prompt)
            if (problem := _problem(logprobs)) is not None:
                reason = f"broken output on prompt {number}: {problem}"
                for _ in range(TRIES - 1):
                    if _problem(await replica.ask(model, prompt)) is None:
                        raise Unavailable(f"{replica.name}: {reason}; but not always")
                raise Rejected(reason)
            tokens += len(logprobs)
        return tokens


def _problem(logprobs: Sequence[float | None]) -> str | None:
    if not logprobs:
        return "no tokens"
    for place, value in enumerate(logprobs):
        if value is None or not math.isfinite(value):
            return f"log-probability of token {place} is not finite"
    return None
