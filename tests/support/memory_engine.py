"""The engine that the deployer's gates need, in memory: the reference for every other engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from ratchet.canary_deployer.gates.base import Answer, Loaded
from ratchet.contract.state import PolicyVersion
from ratchet.errors import Rejected


@dataclass
class MemoryEngine:
    """Finds policies by name and digest, but for broken ones."""

    broken: set[str] = field(default_factory=set[str])
    """Digests whose files do not verify."""
    resident: dict[str, str] = field(default_factory=dict[str, str])
    loads: int = 0
    """Loads that had to be done."""

    async def resolve(self, policy: PolicyVersion) -> Loaded:
        if policy.digest in self.broken:
            raise Rejected(f"sha256 of {policy.uri} differs")
        if self.resident.get(policy.name) != policy.digest:
            self.loads += 1
            self.resident[policy.name] = policy.digest
        return Loaded(compared=True)

    async def ask(self, policy: PolicyVersion, prompt: str) -> Answer:
        await self.resolve(policy)
        return Answer([-0.5 for _ in prompt.split()])
