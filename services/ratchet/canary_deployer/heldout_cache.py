"""The held-out results of policies, in files: the candidate of today is the stable policy of tomorrow's comparison."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
import structlog

from ratchet.canary_deployer.domain.paired import Played
from ratchet.core.service.files import write_whole

log = structlog.get_logger()


class HeldoutCache:
    """One file for each key; a key is everything that the results follow from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, *key: object) -> Played | None:
        """The entry of a key; None for one that is missing or cannot be read, which costs a run."""
        return await asyncio.to_thread(_read, self._path(key))

    async def write(self, played: Played, *key: object) -> None:
        """Complete or not at all. A full disk costs the cache, not the gate."""
        await asyncio.to_thread(_write, self._path(key), played)

    def _path(self, key: tuple[object, ...]) -> Path:
        return self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.json"


def _read(path: Path) -> Played | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Played)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning("held-out cache entry ignored", path=str(path), reason=str(error))
        return None


def _write(path: Path, played: Played) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(played), durable=False)
    except OSError as error:
        log.warning("held-out results not cached", path=str(path), reason=str(error))
