"""Gate `warmup`: the policy answers a few prompts on every replica, and every token has a finite log-probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import WARMUP
from ratchet.canary_deployer.domain.rollout import FAILED, PASSED, GateResult
from ratchet.canary_deployer.gates.base import GateTools
from ratchet.canary_deployer.replicas import Replica, ReplicaChecks
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Rejected, Unavailable

NAME = WARMUP
TRIES = 3
"""Output that is broken in each of them is no chance fault."""


@dataclass(frozen=True, slots=True)
class _Warm:
    """What a replica answered."""

    prompts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WarmupGate:
    """Catches NaN weights and broken output, which log-probabilities of one probe can miss."""

    checks: ReplicaChecks
    prompts: Sequence[str]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Ask every prompt of every replica."""
        try:
            warmed = await self.checks.on_each(candidate, stable, self._warm)
        except Rejected as error:
            return GateResult(NAME, FAILED, f"it does not answer as it should: {error}")
        replicas = {name: {"prompts": one.prompts, "tokens": one.tokens} for name, one in warmed.results.items()}
        evidence: JsonObject = {"replicas": replicas, "away": list(warmed.away)}
        tokens = sum(result.tokens for result in warmed.results.values())
        answered = f"{len(self.prompts)} prompts answered by {len(replicas)} replicas, {tokens} tokens, all finite"
        return GateResult(NAME, PASSED, answered, evidence)

    async def _warm(self, replica: Replica, model: str) -> _Warm:
        """Raises `Rejected` for output that is broken in every try, `Unavailable` for one that is broken in some."""
        tokens = 0
        for number, prompt in enumerate(self.prompts, 1):
            logprobs = (await replica.ask(model, prompt)).logprobs
            if (problem := _problem(logprobs)) is not None:
                reason = f"broken output on prompt {number}: {problem}"
                await _refuse_if_always(replica, model, prompt, reason)
            tokens += len(logprobs)
        return _Warm(len(self.prompts), tokens)


def build(tools: GateTools) -> WarmupGate:
    return WarmupGate(tools.checks, tools.warmup_prompts)


async def _refuse_if_always(replica: Replica, model: str, prompt: str, reason: str) -> None:
    for _ in range(TRIES - 1):
        if _problem((await replica.ask(model, prompt)).logprobs) is None:
            raise Unavailable(f"{replica.name}: {reason}; but not always")
    raise Rejected(reason)


def _problem(logprobs: Sequence[float | None]) -> str | None:
    """Why an answer with these log-probabilities is broken; None when it is not."""
    if not logprobs:
        return "no tokens"
    for place, value in enumerate(logprobs):
        if value is None or not math.isfinite(value):
            return f"log-probability of token {place} is not finite"
    return None
