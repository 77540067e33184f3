"""A store of bodies in memory, which can be away."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field

from ratchet.core.errors import DigestMismatch, NotFound, ObjectsUnavailable


@dataclass
class MemoryBodies:
    """By place and SHA-256."""

    held: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])
    away: bool = False
    asked: int = 0

    async def put(self, place: str, sha256: str, body: bytes) -> None:
        """See `Bodies`."""
        self._check()
        self.held[place, sha256] = body

    async def get(self, place: str, sha256: str) -> bytes:
        """See `Bodies`."""
        self._check()
        if (place, sha256) not in self.held:
            raise NotFound(f"no body {place}/{sha256}")
        body = self.held[place, sha256]
        if hashlib.sha256(body).hexdigest() != sha256:
            raise DigestMismatch(f"{place}/{sha256} was changed")
        return body

    def _check(self) -> None:
        self.asked += 1
        if self.away:
            raise ObjectsUnavailable("the object store is away")


def text_of(size: int, seed: int = 1) -> str:
    """So many characters that hardly shrink when they are packed."""
    return random.Random(seed).randbytes(size // 2).hex()
