"""Assembles the trajectories of agents that only set a base_url: they report no end, so silence marks it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import structlog

from ratchet.bus.connection import Bus
from ratchet.errors import ContractError, Unavailable
from ratchet.rules.chat import ChatError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts, Silence
from ratchet.trajectory_collector.domain import assemble_idle, assembly_id
from ratchet.trajectory_collector.nats_streams import Streams

log = structlog.get_logger()

AT_ONCE = 500
"""Silent trajectories that one query returns."""


class IdleAssembler:
    """Goes through silent trajectories in the order in which they fell silent. A restart begins `lookback` ago.

    Silence counts only up to the point where the collector has settled all messages of the broker (`settled_until`), so
    that no assembly overtakes an end that waits in a stream. Any number of collectors may do this: they publish the
    same message.
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
        """`consumers`: durable by stream, for the streams that may hold messages of a trajectory."""
        self._bus = bus
        self._facts = facts
        self._streams = streams
        self._consumers = consumers
        self._idle = idle
        self._lookback = lookback
        self._done: Silence | None = None
        """Every trajectory that fell silent up to here was published, or cannot be assembled."""

    async def tick(self) -> None:
        """Publish the trajectories that have been silent for long enough."""
        settled = [await self._streams.settled_until(stream, durable) for stream, durable in self._consumers.items()]
        before = min(settled) - self._idle
        done = self._done or Silence(before - self._lookback)
        while True:
            silent = await self._facts.idle(done, before, AT_ONCE)
            await asyncio.gather(*(self._publish(one) for one, is_unreported in silent if is_unreported))
            if not silent:
                return
            done = self._done = silent[-1][0]

    async def _publish(self, silence: Silence) -> None:
        """Publish one trajectory. Turns that cannot be assembled are counted, and the others go on."""
        try:
            turns = await self._facts.turns(silence.role, silence.trajectory_id)
            if not any(turn.response for turn in turns):
                return
            trajectory = assemble_idle(silence.role, silence.trajectory_id, turns)
            await self._bus.publish_record(self._bus.seal(trajectory).with_message_id(assembly_id(trajectory)))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: what one agent sent must not stop the service
            metrics.UNASSEMBLED.inc()
            is_expected = isinstance(error, ChatError | ContractError)
            report = log.warning if is_expected else log.error
            report("idle trajectory cannot be assembled", trajectory=silence.trajectory_id, reason=str(error)[:500])
            return
        metrics.IDLE.inc()
