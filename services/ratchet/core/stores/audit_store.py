"""What the object store keeps of the audit log, apart from the broker: signed heads, and a file for each day.

audit/heads/<program>/<sha256>.json          the newest entry of a chain, signed
audit/days/<day>/<program>/<sha256>.jsonl    the entries of a day by the broker's clock, in order
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.message import decode
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.core.contract.audit import AuditEntry, AuditHead
from ratchet.core.errors import ContractError, ObjectsUnavailable
from ratchet.core.rules.audit_heads import signed_head
from ratchet.core.service.audit import AuditLog
from ratchet.core.service.settings import SharedSettings
from ratchet.core.service.signing_keys import signing_key
from ratchet.core.stores.objects import Objects

HEADS, DAYS = "audit/heads", "audit/days"
KEY_FILE = "audit.key"
"""In the data directory of a program."""
SIGN_S = 10.0
"""How long the object store may take for a head."""
AT_ONCE = 8
"""Heads that are fetched at a time."""


def public_keys(data: Path) -> set[str]:
    """The public halves of the keys of all programs that have their data directories in one."""
    return {signing_key(path).verify_key.encode().hex() for path in data.glob(f"*/{KEY_FILE}")}


def audit_log_of(shared: SharedSettings, bus: Bus, program: str) -> AuditLog:
    """The audit log of a program, whose heads the object store keeps."""
    store = AuditStore(Objects(shared))

    async def sign(entry: AuditEntry) -> None:
        key = await asyncio.to_thread(signing_key, shared.data_dir / KEY_FILE)
        await store.keep_head(signed_head(entry, key, bus.now()))

    return AuditLog(bus, program, sign)


class AuditStore:
    """Raises `ObjectsUnavailable` and `Rejected` as `Objects` does. Synchronous, but `keep_head`."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def keep_head(self, head: AuditHead) -> None:
        """Store a head. Raises `ObjectsUnavailable`."""
        blob = msgspec.json.encode(head)
        try:
            async with asyncio.timeout(SIGN_S):
                await asyncio.to_thread(lambda: self._objects.put(blob, f"{HEADS}/{head.service}", ".json"))
        except TimeoutError as error:
            raise ObjectsUnavailable(f"the object store took longer than {SIGN_S:g} s") from error

    def heads(self) -> list[tuple[str, AuditHead | None]]:
        """Every stored head with its uri; None for what is none."""
        uris = self._objects.list(f"{HEADS}/")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [*zip(uris, map(_head_of, pool.map(self._objects.get, uris)), strict=True)]

    def remove_head(self, uri: str) -> None:
        """Remove a head that a newer one stands for."""
        self._objects.remove(uri)

    def days(self) -> list[tuple[date, str, str]]:
        """Day, program and uri of the stored files, by day: one of each day and program, unless two differ."""
        uris = self._objects.list(f"{DAYS}/")
        parts = [uri.split(f"/{DAYS}/")[1].split("/") for uri in uris]
        return sorted(
            (date.fromisoformat(day), program, uri) for (day, program, _), uri in zip(parts, uris, strict=True)
        )

    def keep_day(self, day: date, program: str, entries: Sequence[bytes]) -> None:
        """Store a day's entries, as JSON each."""
        self._objects.put(b"\n".join(entries) + b"\n", f"{DAYS}/{day}/{program}", ".jsonl")

    def entries(self, uri: str) -> list[AuditEntry]:
        """The entries of a file, without lines that are none: the chain of hashes breaks there. Raises `NotFound`."""
        entries: list[AuditEntry] = []
        for line in self._objects.get(uri).splitlines():
            with suppress(msgspec.DecodeError):
                entries.append(decode(line, AuditEntry))
        return entries


class Streamed(NamedTuple):
    """An entry in the stream."""

    entry: AuditEntry
    day: date
    """By the broker's clock."""
    body: bytes


async def audit_entries(bus: Bus, start: int | datetime = 1) -> AsyncGenerator[Streamed]:
    """The entries that the stream has, in order. What is none is left out: the chain of hashes breaks there.

    Raises `BusUnavailable`.
    """
    stream = bus.contracts.topics[AuditEntry.TOPIC].stream
    async with aclosing(OrderedReader(bus, stream, start=start).to_end()) as batches:
        async for batch in batches:
            for message in batch:
                with suppress(ContractError):
                    received, _ = bus.read(message)
                    if isinstance(received.message, AuditEntry):
                        yield Streamed(received.message, received.time.date(), received.body)


def _head_of(blob: bytes) -> AuditHead | None:
    try:
        return decode(blob, AuditHead)
    except msgspec.DecodeError:
        return None
