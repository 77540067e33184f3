"""Holds the ledger against what the broker says was settled, and trims streams that are nearly full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nats.errors
import structlog

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import BusUnavailable
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts

log = structlog.get_logger()


class Auditor:
    """Every settled message must have exactly one line in the ledger; otherwise readiness turns red."""

    def __init__(self, bus: Bus, facts: Facts, consumers: Mapping[str, str], trim_above: float) -> None:
        self._bus = bus
        self._facts = facts
        self._consumers = consumers
        self._trim_above = trim_above
        self._missing: dict[str, int] = {}

    async def tick(self) -> None:
        """Audit every stream once."""
        for stream, consumer in self._consumers.items():
            await self._audit(stream, consumer)

    async def check(self) -> str | None:
        """Readiness: the streams whose ledger does not balance."""
        broken = [f"{stream} lacks {missing}" for stream, missing in self._missing.items() if missing > 0]
        return "ledger does not balance: " + ", ".join(broken) if broken else None

    async def _audit(self, stream: str, consumer: str) -> None:
        jetstream: Any = self._bus.nc.jetstream()  # typed only in parts
        try:
            floor = (await jetstream.consumer_info(stream, consumer)).ack_floor.stream_seq
            info = await jetstream.stream_info(stream)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot audit {stream}: {error!r}") from error
        accounted = await self._facts.accounted_up_to(stream, consumer, floor)
        self._missing[stream] = floor - accounted
        metrics.MISSING.labels(stream).set(floor - accounted)
        limit = self._bus.contracts.streams[stream].max_msgs
        if limit and info.state.messages > limit * self._trim_above and floor == accounted:
            await self._trim(jetstream, stream)

    async def _trim(self, jetstream: Any, stream: str) -> None:
        """Drop what every durable consumer of the stream has settled; the ledger was just found in balance."""
        consumers = await jetstream.consumers_info(stream)
        settled = min(info.ack_floor.stream_seq for info in consumers if info.config.durable_name)
        await jetstream.purge_stream(stream, seq=settled + 1)
        log.warning("stream trimmed", stream=stream, up_to=settled)
