"""The engine that the deployer's gates need, in memory: the reference for every other engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.replicas import ScoredToken
from ratchet.core.errors import Rejected
from tests.support.scoring_engine import likeliest, logprobs


@dataclass
class MemoryReplica:
    """Finds every policy by its name, but for those whose files do not verify."""

    name: str = "memory"
    adapters_only: bool = False
    logprobs_mode: str | None = "processed_logprobs"
    broken: set[str] = field(default_factory=set[str])
    """Names of policies whose files do not verify."""
    resident: list[str] = field(default_factory=list[str])

    async def models(self) -> Sequence[str]:
        return list(self.resident)

    async def ask(self, model: str, prompt: str) -> Sequence[float | None]:
        self._find(model)
        return [-0.5 for _ in prompt.split()]

    async def score(self, model: str, ids: Sequence[int], candidates: int) -> Sequence[ScoredToken] | None:
        self._find(model)
        values = [(ids[place], logprobs(0, ids[:place])) for place in range(1, len(ids))]
        return [
            ScoredToken(of[token], {other: of[other] for other in likeliest(of, candidates)}) for token, of in values
        ]

    async def candidates(self, model: str, ids: Sequence[int], temperature: float, count: int) -> Mapping[int, float]:
        self._find(model)
        values = logprobs(0, ids, temperature)
        return {token: values[token] for token in likeliest(values, count)}

    async def chat_ids(self, model: str, tools: Sequence[JsonObject]) -> Sequence[int] | None:
        self._find(model)
        return [1, *(2 for _ in tools)]

    async def unload(self, model: str) -> None:
        if model in self.resident:
            self.resident.remove(model)

    def _find(self, model: str) -> None:
        if model in self.broken:
            raise Rejected(f"sha256 of the files of {model} differs")
        if model not in self.resident:
            self.resident.append(model)
