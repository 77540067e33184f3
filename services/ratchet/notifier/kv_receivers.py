"""The state of a receiver, of which one notifier at a time is the holder: in the broker, and on disk beside it.

Each write is a compare-and-set in the bucket `notifications`, so of two notifiers one sends. The holder writes at least
every `BEAT_S`; another one takes over what has not changed for `TAKEOVER_S`, by its own monotonic clock.

The file has what was written last, unless the disk was full. While the broker is away its holder goes on with it, or
people would not hear of just that; no other notifier can become the holder then. A notifier that was cut off from a
broker that another one reaches may send what the other sends.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract import Alert
from ratchet.core.contract.notifications import NOTIFICATIONS, Receiver
from ratchet.core.errors import BusUnavailable, Conflict, Unreadable
from ratchet.core.service.files import PRIVATE, write_whole
from ratchet.notifier.domain.deliveries import known_once_taken

log = structlog.get_logger()

BEAT_S, TAKEOVER_S = 10.0, 30.0


class ReceiverStore:
    """The state of one receiver."""

    def __init__(
        self,
        blank: Receiver,
        folder: Path,
        holder: str,
        connected: Callable[[], Bus | None],
    ) -> None:
        """`blank`: its settings, with nothing sent yet; `connected`: the bus, unless it is away."""
        self._blank = blank
        self._file = folder / f"{blank.name}.json"
        self._holder = holder
        self._connected = connected
        self._revision: int | None = None
        """Of the value in the broker that ours follows; None while it has none."""
        self._mine: Receiver | None = self._read_file()
        """What this process, or the one before it, wrote last as the holder."""
        self._seen: tuple[int | None, float] | None = None
        """The revision of another holder, and when it was first seen."""
        self._written_s = -BEAT_S

    @property
    def name(self) -> str:
        """The receiver's."""
        return self._blank.name

    @property
    def failures(self) -> int:
        """Attempts in a row that it did not take, as far as this process is its holder."""
        return self._mine.failures if self._mine is not None else 0

    def firing(self, source: str) -> list[Alert]:
        """The alerts of a source that this process, or the one before it, notified it of and that are not over.

        Those of a notification under way count: it may have been taken before the process that sent it ended.
        """
        mine = self._mine
        if mine is None:
            return []
        known = mine.known if mine.outgoing is None else known_once_taken(mine, mine.outgoing, mine.at)
        return [
            Alert(
                alert_id=alert.alert_id,
                key=key,
                severity=alert.severity,
                summary=alert.summary,
                source=source,
                at=alert.at,
                role=alert.role,
            )
            for key, alert in known.items()
            if alert.source == source and not alert.resolved
        ]

    @property
    def is_beat_due(self) -> bool:
        """Whether the holder has to write, to stay it."""
        return time.monotonic() - self._written_s >= BEAT_S

    async def load(self) -> Receiver | None:
        """The state; None while another notifier is the holder. Raises `Unavailable` where no one can know that."""
        bus = self._connected()
        if bus is None:
            return self._mine
        try:
            stored = await self._read(bus)
        except BusUnavailable:
            if self._mine is None:
                raise
            return self._mine
        if stored is None:
            return self._ours(self._mine or self._blank)
        mine = self._mine
        if stored.holder in ("", self._holder):
            return self._ours(mine if mine is not None and mine.beat > stored.beat else stored)
        if self._seen is None or self._seen[0] != self._revision:
            self._seen = (self._revision, time.monotonic())
        if time.monotonic() - self._seen[1] < TAKEOVER_S:
            await self._forget()
            return None
        log.info("takes over", receiver=self.name)
        return self._ours(stored)

    async def _read(self, bus: Bus) -> Receiver | None:
        """What the broker has, which the next write follows; None where it has nothing that can be read."""
        try:
            entry = await Bucket(bus, NOTIFICATIONS, Receiver).get(self.name)
        except Unreadable as error:
            log.error("what was sent cannot be read", receiver=self.name, reason=str(error))
            self._revision = error.revision
            return None
        self._revision = entry.revision if entry is not None else None
        return entry.value if entry is not None else None

    async def save(self, receiver: Receiver, now: datetime) -> Receiver:
        """Write it; returns it as it was written. Raises `Conflict` where another notifier was faster.

        A broker that is away does not matter: the file has it, and the broker gets it at the next write. Nor does a
        disk that is full, or people would not hear of just that.
        """
        written = replace(receiver, holder=self._holder, beat=receiver.beat + 1, at=now)
        try:
            await asyncio.to_thread(write_whole, self._file, msgspec.json.encode(written), mode=PRIVATE)
        except OSError as error:
            log.warning("what was sent is not kept on disk", receiver=written.name, reason=str(error))
        self._mine, self._written_s = written, time.monotonic()
        bus = self._connected()
        if bus is None:
            return written
        try:
            await self._write(bus, written)
        except Conflict:
            await self._forget()
            raise
        except BusUnavailable as error:
            log.warning("what was sent is kept on disk", receiver=written.name, reason=str(error))
        return written

    async def _write(self, bus: Bus, written: Receiver) -> None:
        """Write it to the broker, once more where no other notifier has: it may have taken a write whose answer was
        lost, or have lost the state. Raises `Conflict`.
        """
        try:
            await self._compare_and_set(bus, written)
        except Conflict:
            stored = await self._read(bus)
            if self._revision is not None and (stored is None or stored.holder != self._holder):
                raise
            await self._compare_and_set(bus, written)

    async def _compare_and_set(self, bus: Bus, written: Receiver) -> None:
        bucket = Bucket(bus, NOTIFICATIONS, Receiver)
        if self._revision is None:
            self._revision = await bucket.create(written.name, written)
        else:
            self._revision = await bucket.update(written.name, written, self._revision)

    def _ours(self, value: Receiver) -> Receiver:
        self._seen = None
        blank = self._blank
        return replace(value, kind=blank.kind, severity=blank.severity, roles=blank.roles)

    async def _forget(self) -> None:
        self._mine = None
        await asyncio.to_thread(self._file.unlink, missing_ok=True)

    def _read_file(self) -> Receiver | None:
        try:
            return decode(self._file.read_bytes(), Receiver)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            log.error("the file of what was sent cannot be read", receiver=self._blank.name, reason=str(error))
            return None


def holder_of(folder: Path) -> str:
    """The id of the notifier with this folder: the same after a restart. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "id"
    try:
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE), "w") as new:
            new.write(uuid.uuid4().hex)
    except FileExistsError:
        pass
    return file.read_text().strip() or uuid.uuid4().hex
