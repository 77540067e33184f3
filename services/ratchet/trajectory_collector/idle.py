"""Assembles the trajectories of agents that only set a base_url: nobody says when they end, so silence does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import ContractError
from ratchet.messages.chat import ChatError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.domain import assemble_idle, telling_id
from ratchet.trajectory_collector.nats_streams import Streams

log = structlog.get_logger()

AT_ONCE = 500
"""Trajectories that one tick assembles; the next tick goes on."""


class IdleAssembler:
    """Keeps nothing: what is idle is asked of ClickHouse every time, so any number may do it at once.

    Silence counts only as far as the collector has settled what the broker holds (`settled_until`): an end that still
    waits in a stream is not overtaken.
    """

    def __init__(
        self,
        bus: Bus,
        facts: Facts,
        streams: Streams,
        consumers: Mapping[str, str],
        *,
        idle: timedelta,
        lookback: timedelta,
    ) -> None:
        """`consumers`: durable by stream, for the streams that may hold news of a trajectory."""
        self._bus = bus
        self._facts = facts
        self._streams = streams
        self._consumers = consumers
        self._idle = idle
        self._lookback = lookback
        self._unfit: set[str] = set()
        """Found, and not to be assembled; forgotten when it is found no longer: it was told, changed or is too old."""

    async def tick(self) -> None:
        """Publish what has been silent for long enough."""
        settled = [await self._streams.settled_until(stream, durable) for stream, durable in self._consumers.items()]
        before = min(settled) - self._idle
        found = await self._facts.idle(since=before - self._lookback, before=before, limit=AT_ONCE + len(self._unfit))
        self._unfit &= {name for _, name in found}
        fitting = [(role, name) for role, name in found if name not in self._unfit]
        await asyncio.gather(*(self._publish(role, name) for role, name in fitting))
        if fitting:
            log.info("idle trajectories", found=len(fitting), unfit=len(self._unfit))

    async def _publish(self, role: str, trajectory_id: str) -> None:
        """Turns that do not add up to a trajectory never will: they are counted once."""
        turns = await self._facts.turns(role, trajectory_id)
        try:
            trajectory = assemble_idle(role, trajectory_id, turns)
            subject, headers, body = self._bus.seal(trajectory)
        except (ChatError, ContractError) as error:
            self._unfit.add(trajectory_id)
            metrics.UNASSEMBLED.inc()
            log.warning("idle trajectory cannot be assembled", trajectory=trajectory_id, reason=str(error))
            return
        await self._bus.publish_raw(subject, headers | {"Nats-Msg-Id": telling_id(trajectory)}, body)
        metrics.IDLE.inc()
