"""Where bodies are kept that are too large for the broker: their messages only refer to them."""

from __future__ import annotations

from typing import Protocol

KEPT_S = 30 * 86_400.0
"""How long a store keeps a body at least: messages of streams that keep them longer hold theirs."""


class Bodies(Protocol):
    """Keeps bodies by place and SHA-256. `place` is what follows the topic in a subject: a country, say."""

    async def put(self, place: str, sha256: str, body: bytes) -> None:
        """Keep a body, durably. Raises `Unavailable`, or `Rejected` for one that will never be taken."""
        ...

    async def get(self, place: str, sha256: str) -> bytes:
        """A body that was put there. Raises `Unavailable`, `NotFound`, or `DigestMismatch` for one that was changed."""
        ...
