"""Gate `warmup`: the policy answers a few prompts, and every token has a finite log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.canary_deployer.domain.gating import WARMUP
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Engine, GateTools
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected

NAME = WARMUP


@dataclass(frozen=True, slots=True)
class WarmupGate:
    """Catches NaN weights and broken output, which log-probabilities of one probe can miss."""

    engine: Engine
    prompts: Sequence[str]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Ask every prompt; the first broken answer decides."""
        del stable
        tokens = 0
        for number, prompt in enumerate(self.prompts, 1):
            try:
                logprobs = (await self.engine.ask(candidate, prompt)).logprobs
            except Rejected as error:
                problem = str(error)
            else:
                problem = _problem(logprobs)
                tokens += len(logprobs)
            if problem is not None:
                evidence = {"prompts": number, "tokens": tokens, "broken_prompt": prompt}
                return GateResult(NAME, FAILED, f"broken output on prompt {number}: {problem}", evidence)
        evidence = {"prompts": len(self.prompts), "tokens": tokens}
        return GateResult(NAME, PASSED, f"{len(self.prompts)} prompts answered, {tokens} tokens, all finite", evidence)


def build(tools: GateTools) -> WarmupGate:
    return WarmupGate(tools.engine, tools.warmup_prompts)


def _problem(logprobs: Sequence[float | None]) -> str | None:
    """Why an answer with these log-probabilities is broken; None when it is not."""
    if not logprobs:
        return "no tokens"
    for place, value in enumerate(logprobs):
        if value is None or not math.isfinite(value):
            return f"log-probability of token {place} is not finite"
    return None
