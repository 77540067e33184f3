"""What policies change of calls, by the policy's digest: from the bucket `bundles` once, then from memory and disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.kv import Bucket
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.state import ServedPolicy
from ratchet.core.errors import Rejected, Unavailable, Unreadable
from ratchet.core.service.files import write_whole
from ratchet.dialects.bundles import Applier
from ratchet.gateway.domain.past_calls import Recent

log = structlog.get_logger()

MEMORY_BYTES = 32 * 1024 * 1024
"""Of bundles: hundreds. One that is forgotten is read from disk again."""


class Bundles:
    """A bundle never changes, so what was read once serves without a broker too."""

    def __init__(self, bucket: Callable[[], Bucket[Bundle] | None], folder: Path) -> None:
        """`bucket`: None while there is no connection."""
        self._bucket = bucket
        self._folder = folder
        self._known: Recent[str, Applier] = Recent(MEMORY_BYTES)

    def find(self, digest: str) -> Applier | None:
        """The bundle of a policy, where this machine has it."""
        known = self._known.get_value(digest)
        if known is not None:
            return known
        try:
            raw = (self._folder / f"{digest}.json").read_bytes()
            return self._kept(digest, msgspec.json.decode(raw, type=Bundle), len(raw))
        except FileNotFoundError:
            return None
        except (OSError, Rejected, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("bundle on disk unreadable", policy=digest, reason=str(error))
            return None

    async def prepare(self, policies: Iterable[ServedPolicy | None]) -> None:
        """Fetch those of `policies` that are not here. What cannot be had now is a policy that answers no call."""
        for policy in policies:
            if policy is not None and policy.bundle and self.find(policy.digest) is None:
                try:
                    await self._fetch(policy.digest)
                except (Unavailable, Unreadable, Rejected) as error:
                    log.error("bundle not read", policy=policy.name, reason=str(error))

    async def _fetch(self, digest: str) -> None:
        bucket = self._bucket()
        entry = await bucket.get(digest) if bucket is not None else None
        if entry is None:
            return
        raw = msgspec.json.encode(entry.value)
        self._kept(digest, entry.value, len(raw))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / f"{digest}.json", raw, durable=False)
        except OSError as error:
            log.warning("bundle not stored", policy=digest, reason=str(error))

    def _kept(self, digest: str, bundle: Bundle, size: int) -> Applier:
        applier = Applier(bundle)
        self._known.put_value(digest, applier, size)
        return applier
