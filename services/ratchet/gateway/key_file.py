"""Agents' API keys in a file, which is read again when it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from ratchet.core.contract.state import Key
from ratchet.core.errors import ConfigError
from ratchet.core.rules.access import AGENT_SCOPES
from ratchet.core.service.keys import setting_key

log = structlog.get_logger()

LOOK_S = 0.5
"""How often the file is looked at."""


class KeyFile:
    """One key per line. `take` gets all of them, at first and whenever the file has changed."""

    def __init__(self, path: Path, take: Callable[[Sequence[Key]], None]) -> None:
        """Raises `ConfigError` for a file that cannot be read, or holds no key."""
        self._path = path
        self._take = take
        self._seen: tuple[int, int, int] | None = None
        self._count = 0
        self._problem: str | None = None
        try:
            if not self._read():
                raise ConfigError(f"{path} holds no API key: the gateway would let no agent in")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the API keys: {error}") from error

    async def look(self) -> None:
        """Read the file if it has changed. While it cannot be read, what it held last counts."""
        try:
            self._read()
        except (OSError, UnicodeDecodeError) as error:
            if self._problem is None:
                log.error("API keys unreadable", file=str(self._path), reason=type(error).__name__)
            self._problem = f"{self._path} cannot be read; the keys that it held last count"
        else:
            self._problem = None

    async def check(self) -> str | None:
        """Why the keys may be older than the file."""
        return self._problem

    def _read(self) -> int:
        """The number of keys that it holds now."""
        status = self._path.stat()
        seen = (status.st_mtime_ns, status.st_size, status.st_ino)
        if seen != self._seen:
            keys = self._path.read_text().split()
            self._take(agent_keys(keys))
            self._seen, self._count = seen, len(keys)
        return self._count


def agent_keys(keys: Sequence[str]) -> list[Key]:
    """Keys that may do everything that agents do, in every role."""
    return [setting_key(key, "agents", AGENT_SCOPES) for key in keys]
