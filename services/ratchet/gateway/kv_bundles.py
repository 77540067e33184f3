"""What policies change of calls, by the policy's digest: from the bucket `bundles` once, then from memory and disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.bus.recent import Recent
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.state import ServedPolicy
from ratchet.core.errors import Rejected, Unavailable, Unreadable
from ratchet.core.service.files import write_whole
from ratchet.dialects.bundles import Applier

log = structlog.get_logger()

MEMORY_BYTES = 32 * 1024 * 1024
"""Of bundles: hundreds. One that is forgotten is read from disk again."""
ASK_AGAIN_S = 5.0
"""Pause before the bucket is asked again for a bundle that it did not give: calls of its policy come all the time."""


@dataclass(slots=True)
class Bundles:
    """A bundle never changes, so what was read once serves without a broker too."""

    bucket: Callable[[], Bucket[Bundle] | None]
    """None while there is no connection."""
    folder: Path
    monotonic: Callable[[], float] = time.monotonic
    _known: Recent[str, Applier] = field(default_factory=lambda: Recent(MEMORY_BYTES), init=False)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _asked: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """By digest of a bundle that the bucket did not give: when it was asked."""

    def find(self, digest: str) -> Applier | None:
        """The bundle of a policy, where this machine has it."""
        known = self._known.get_value(digest)
        if known is not None:
            return known
        try:
            raw = (self.folder / f"{digest}.json").read_bytes()
            return self._kept(digest, msgspec.json.decode(raw, type=Bundle), len(raw))
        except FileNotFoundError:
            return None
        except (OSError, Rejected, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("bundle on disk unreadable", policy=digest, reason=str(error))
            return None

    async def prepare(self, policies: Iterable[ServedPolicy | None]) -> None:
        """Fetch those of `policies` that are not here. What cannot be had now is a policy that answers no call."""
        for policy in policies:
            if policy is None or not policy.bundle or self.find(policy.digest) is not None:
                continue
            async with self._asking:  # who waited may find what the one before has read
                bucket = self.bucket()
                if bucket is not None and self._may_ask(policy.digest) and self.find(policy.digest) is None:
                    await self._fetch(bucket, policy)

    def prune(self, named: Collection[str]) -> None:
        """Take off the disk the bundles of policies that are not `named`, by digest; without any the registry is lost,
        and nothing is."""
        for file in self.folder.glob(f"{'[0-9a-f]' * 64}.json"):
            if named and file.stem not in named:
                file.unlink(missing_ok=True)
                log.info("bundle removed from disk", policy=file.stem)

    def _may_ask(self, digest: str) -> bool:
        asked = self._asked.get(digest)
        return asked is None or self.monotonic() - asked >= ASK_AGAIN_S

    async def _fetch(self, bucket: Bucket[Bundle], policy: ServedPolicy) -> None:
        digest = policy.digest
        try:
            entry = await bucket.get(digest)
            if entry is not None:
                self._store(digest, entry.value)
                return
            reason = "the bucket has none"
        except (Unavailable, Unreadable, Rejected) as error:
            reason = str(error)
        self._asked[digest] = self.monotonic()
        log.error("bundle not read", policy=policy.name, reason=reason)

    def _store(self, digest: str, bundle: Bundle) -> None:
        """Keep a bundle in memory and on disk. Raises `Rejected` for one that cannot be applied."""
        raw = msgspec.json.encode(bundle)
        self._kept(digest, bundle, len(raw))
        self._asked.pop(digest, None)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{digest}.json", raw, durable=False)
        except OSError as error:
            log.warning("bundle not stored", policy=digest, reason=str(error))

    def _kept(self, digest: str, bundle: Bundle, size: int) -> Applier:
        applier = Applier(bundle)
        self._known.put_value(digest, applier, size)
        return applier
