"""Gate `warmup`: the policy answers a few prompts, and every token has a finite log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Engine, GateTools
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected

NAME = "warmup"


@dataclass(frozen=True, slots=True)
class WarmupGate:
    """Catches NaN weights and output that is broken, which log-probabilities of one probe can miss."""

    engine: Engine
    prompts: Sequence[str]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Ask every prompt; the first broken answer decides."""
        del stable
        tokens = 0
        for number, prompt in enumerate(self.prompts, 1):
            broken, answered = await self._broken(candidate, prompt)
            tokens += answered
            if broken is not None:
                evidence = {"prompts": number, "tokens": tokens, "broken_prompt": prompt}
                return GateResult(NAME, FAILED, f"broken output on prompt {number}: {broken}", evidence)
        evidence = {"prompts": len(self.prompts), "tokens": tokens}
        return GateResult(NAME, PASSED, f"{len(self.prompts)} prompts answered, {tokens} tokens, all finite", evidence)

    async def _broken(self, candidate: PolicyVersion, prompt: str) -> tuple[str | None, int]:
        """Why the answer is broken (None when it is not), and how many tokens it had."""
        try:
            answer = await self.engine.ask(candidate, prompt)
        except Rejected as error:
            return str(error), 0
        if not answer.logprobs:
            return "no tokens", 0
        finite = [value is not None and math.isfinite(value) for value in answer.logprobs]
        if not all(finite):
            return f"log-probability of token {finite.index(False)} is not finite", len(finite)
        return None, len(finite)


def build(tools: GateTools) -> WarmupGate:
    return WarmupGate(tools.engine, tools.warmup_prompts)
