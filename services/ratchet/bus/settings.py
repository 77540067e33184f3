"""Where the broker is, and what it is asked for. Imports no broker's library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PASSWORD = re.compile(r"(?<=//)[^/?#\s:@]*:(?:(?!://)\S)*@")
"""With a password that holds `/`, `?` or `#`, which should be escaped in it: rather hide too much than show a part."""
_USER = re.compile(r"(?:^|(?<=//))[^/?#]*@")
"""All up to the last `@` of the host's part, with a scheme before it or without: a password may hold an `@` itself."""

SEED_SETTING = "RATCHET_NATS_SEED_FILE"
"""Names a program's seed file."""


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Where the broker is, and what it is asked for."""

    url: str = "nats://127.0.0.1:4222"
    """`tls://` insists on TLS."""
    seed_file: Path | None = None
    """File with this program's NKEY seed; None where the broker asks for no credentials."""
    replicas: int = 1
    """Copies of every stream and bucket: 1 on one machine, 3 in a cluster."""
    stream_max_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Stream -> bytes it may hold, where that differs from the registry."""
    seed_setting: str = SEED_SETTING
    """The setting that names the seed file, for messages."""


def without_user(url: str) -> str:
    """An address for logs and messages: without the user and password that may stand in it."""
    return _USER.sub("", _PASSWORD.sub("", url))
