"""What the gates say of each policy, as one object beside its manifest: `validations/<digest of the policy>.json`.

It is the policy's entry in the registry, whose `gate` has the outcome, reason and evidence of each gate. Derived from
the registry at each look, so a verdict waits for no object store: what could not be written is written by a later look.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Protocol

from ratchet.bus.message import encode
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.core.stores.listing import VALIDATIONS

LOOK_S = 60.0


class Objects(Protocol):
    """The part of `stores.objects.Objects` that this needs."""

    def write(self, blob: bytes, key: str) -> None: ...


@dataclass(slots=True)
class Validations:
    """Writes what is new or has changed since this process wrote it; writing it again changes nothing."""

    policies: KvPolicies
    objects: Objects
    _written: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """By policy: sha256 of what was written."""

    async def write(self) -> None:
        """To be called every `LOOK_S`. Raises `Unavailable` or `Rejected`; what is left comes with the next look."""
        known = [policy for role in await self.policies.roles() for policy in await self.policies.versions(role)]
        judged = {policy.digest: policy for policy in known if policy.gate is not None}
        for digest, policy in judged.items():
            body = encode(policy)
            if self._written.get(digest) != (content := hashlib.sha256(body).hexdigest()):
                await asyncio.to_thread(self.objects.write, body, f"{VALIDATIONS}/{digest}.json")
                self._written[digest] = content
