"""Holds the ledger against what the broker says was settled, reads again what it lacks, trims full streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from ratchet.kernel.errors import RatchetError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from ratchet.trajectory_collector.restore import Restorer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Settled messages that the ledger does not account for."""

    missing: int
    gone: int
    """Those among them that the stream no longer holds: nothing can bring them back."""

    def __str__(self) -> str:
        gone = f", {self.gone} of them no longer in the stream" if self.gone else ""
        return f"{self.missing}{gone}"


class Auditor:
    """Every settled message must have exactly one line in the ledger; otherwise readiness turns red."""

    def __init__(
        self, streams: Streams, facts: Facts, consumers: Mapping[str, str], restorer: Restorer, trim_above: float
    ) -> None:
        self._streams = streams
        self._facts = facts
        self._consumers = consumers
        self._restorer = restorer
        self._trim_above = trim_above
        self._imbalances: dict[str, Imbalance] = {}

    async def tick(self) -> None:
        """Audit every stream once. A stream that cannot be audited now does not hide the others."""
        for stream, consumer in self._consumers.items():
            try:
                await self._audit(stream, consumer)
            except RatchetError as error:
                log.warning("stream not audited", stream=stream, reason=str(error))

    async def check(self) -> str | None:
        """Readiness: the streams whose ledger does not balance."""
        broken = [f"{stream} lacks {found}" for stream, found in self._imbalances.items() if found.missing > 0]
        return "ledger does not balance: " + ", ".join(broken) if broken else None

    async def _audit(self, stream: str, consumer: str) -> None:
        progress = await self._streams.progress(stream, consumer)
        found = await self._imbalance(stream, consumer, progress)
        if found.missing > found.gone:
            self._tell(stream, found)
            await self._restorer.restore(stream, consumer, progress)
            found = await self._imbalance(stream, consumer, progress)
        self._tell(stream, found)
        if progress.limit and progress.messages > progress.limit * self._trim_above and not found.missing:
            settled = await self._streams.trim(stream)
            log.warning("stream trimmed", stream=stream, up_to=settled)

    async def _imbalance(self, stream: str, consumer: str, progress: Progress) -> Imbalance:
        """What the ledger lacks. The ranges are asked for only when the sum says that there are some."""
        missing = progress.floor - await self._facts.accounted_up_to(stream, consumer, progress.floor)
        if missing <= 0:
            return Imbalance(missing, 0)
        gone_before = min(progress.first - 1, progress.floor)
        return Imbalance(missing, gone_before - await self._facts.accounted_up_to(stream, consumer, gone_before))

    def _tell(self, stream: str, found: Imbalance) -> None:
        self._imbalances[stream] = found
        metrics.MISSING.labels(stream).set(found.missing)
        metrics.STORED.labels(stream, "dead")  # from 0 on, so that the first dead letter shows as an increase
