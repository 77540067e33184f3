"""The registry of workers in bucket `workers`: `<name>` what an operator wrote, `<name>.measured` what was measured."""

from __future__ import annotations

from functools import partial

import msgspec
import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import decode
from ratchet.core.contract.workflows import WORKERS, Worker, WorkerMeasures
from ratchet.workflows.domain.choosing import Known, measured

log = structlog.get_logger()

MEASURED = ".measured"


class WorkerStore:
    """Raises what `Bucket` does."""

    def __init__(self, bus: Bus) -> None:
        self._raw = Bucket(bus, WORKERS, msgspec.Raw)
        self._workers = Bucket(bus, WORKERS, Worker)
        self._measures = Bucket(bus, WORKERS, WorkerMeasures)

    async def every(self) -> list[Known]:
        """All workers, by name. One that cannot be read is left out, and logged."""
        stored = {key: bytes(entry.value) for key, entry in (await self._raw.items()).items()}
        known: list[Known] = []
        for key, content in stored.items():
            if key.endswith(MEASURED):
                continue
            try:
                known.append(Known(decode(content, Worker), _measures_of(key, stored.get(key + MEASURED))))
            except msgspec.DecodeError as error:
                log.error("a worker cannot be read", worker=key, reason=str(error))
        return known

    async def find(self, name: str) -> Known | None:
        """The worker of a name."""
        return next((known for known in await self.every() if known.worker.name == name), None)

    async def put(self, worker: Worker) -> None:
        """Write a worker; what was measured of its name stays."""
        await self._workers.put(worker.name, worker)

    async def remove(self, name: str) -> None:
        """Remove a worker and its measures."""
        await self._workers.delete(name)
        await self._measures.delete(name + MEASURED)

    async def note(self, name: str, *, success: bool, latency_ms: float, cost_usd: float) -> None:
        """Count a call."""
        counted = partial(measured, success=success, latency_ms=latency_ms, cost_usd=cost_usd)
        await self._measures.change(name + MEASURED, counted)


def _measures_of(name: str, stored: bytes | None) -> WorkerMeasures | None:
    """None, too, where they cannot be read: a worker does its work without."""
    try:
        return decode(stored, WorkerMeasures) if stored is not None else None
    except msgspec.DecodeError as error:
        log.error("what was measured of a worker cannot be read", worker=name, reason=str(error))
        return None
