"""The secrets of one stack: random, made at its first start, kept beside its data."""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import PRIVATE, write_whole

SECRETS_FILE = "secrets.json"
BYTES = 24
"""Of randomness in each secret, written in letters that urls and SQL need not quote."""


def _random() -> str:
    return secrets.token_urlsafe(BYTES)


class StackSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """Who knows them may read and change everything that the stack stores."""

    clickhouse_password: str = msgspec.field(default_factory=_random)
    s3_secret_key: str = msgspec.field(default_factory=_random)
    service_key: str = msgspec.field(default_factory=_random)


def read_secrets(directory: Path) -> StackSecrets:
    """The stack's secrets; fresh ones, not written yet, where it has none. Raises `ConfigError`."""
    path = directory / SECRETS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StackSecrets)
    except (FileNotFoundError, NotADirectoryError):
        return StackSecrets()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def keep_secrets(directory: Path) -> StackSecrets:
    """The stack's secrets, written down (readable by this user only) when they are fresh. Raises `ConfigError`."""
    known = read_secrets(directory)
    if not (directory / SECRETS_FILE).exists():
        write_whole(directory / SECRETS_FILE, msgspec.json.format(msgspec.json.encode(known), indent=1), mode=PRIVATE)
    return known
