"""Where the broker is, and what it is asked for. Imports no broker's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Where the broker is, and what it is asked for."""

    url: str = "nats://127.0.0.1:4222"
    """`tls://` insists on TLS."""
    seed_file: Path | None = None
    """File with this program's NKEY seed; none where the broker asks for no credentials."""
    replicas: int = 1
    """Copies of every stream and bucket: 1 on one machine, 3 in a cluster."""
    stream_max_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Stream -> bytes it may hold, where that differs from the registry."""
