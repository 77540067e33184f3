"""Encryption at rest: the stores encrypt what they write, with keys that follow from one secret of the environment.

The secret stands nowhere below the stack's directory. A mark there, by which nothing can be read, tells another secret
from the right one: a store that got a wrong key would begin with nothing in the place of what it cannot read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import ConfigError

VARIABLE = "RATCHET_STORAGE_KEY"
"""The secret; earlier ones after it, with commas between them."""
LEAST_LETTERS = 32
MARK_FILE = "encrypted.txt"
NATS_KEY, NATS_EARLIER = "RATCHET_EMBEDDED_NATS_KEY", "RATCHET_EMBEDDED_NATS_KEY_EARLIER"
CLICKHOUSE_KEY = "RATCHET_EMBEDDED_CLICKHOUSE_KEY_"
"""With a number behind it; 0 is what is written with."""


@dataclass(frozen=True, slots=True)
class StorageKeys:
    """The secrets, the newest first; none: the stores encrypt nothing."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> StorageKeys:
        """Those of `VARIABLE`. Raises `ConfigError` for one that is too short."""
        secrets = tuple(part.strip() for part in environment.get(VARIABLE, "").split(",") if part.strip())
        if any(len(secret) < LEAST_LETTERS for secret in secrets):
            raise ConfigError(
                f"{VARIABLE} needs {LEAST_LETTERS} letters or more, such as `openssl rand -hex 32` writes"
            )
        return cls(secrets)

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def nats_environment(self) -> dict[str, str]:
        """The variables that the broker's configuration names: its key, and the one before."""
        names = (NATS_KEY, NATS_EARLIER)
        # Text that begins like a number would be read as one.
        return {name: f"key-{_derived(secret, 'nats')}" for name, secret in zip(names, self.secrets, strict=False)}

    def clickhouse_environment(self) -> dict[str, str]:
        """The variables that the configuration of the encrypted disk names: each key in hexadecimal."""
        return {f"{CLICKHOUSE_KEY}{n}": _derived(secret, "clickhouse") for n, secret in enumerate(self.secrets)}

    def mark(self) -> str:
        """What tells the newest secret from others."""
        return _mark(self.secrets[0])

    def require_fit(self, data: Path) -> None:
        """Raise `ConfigError` where what is stored in `data` cannot be read with these secrets."""
        file = data / MARK_FILE
        stored = file.read_text() if file.exists() else None
        if stored is None:
            if self and (data / "nats" / "jetstream").exists():
                raise ConfigError(
                    f"{data} holds what is not encrypted, and {VARIABLE} is set: encryption begins with an empty --dir"
                )
        elif stored not in map(_mark, self.secrets):
            missing = "is another one" if self else "is not set"
            raise ConfigError(f"{data} is encrypted, and {VARIABLE} {missing}: set the key that it was written with")


def _derived(secret: str, use: str) -> str:
    return hmac.digest(secret.encode(), f"ratchet {use}".encode(), hashlib.sha256).hex()


def _mark(secret: str) -> str:
    return _derived(secret, "mark")[:16]
