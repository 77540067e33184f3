"""Assembles the trajectories of agents that only set a base_url: they report no end, so silence marks it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.halving import in_halves
from ratchet.core.errors import ContractError, Unavailable
from ratchet.core.rules.chat import ChatError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import Facts, Roles, RunKey, Silence
from ratchet.trajectory_collector.domain import Inference, Run, assemble_idle, assembly_id
from ratchet.trajectory_collector.handlers import report_gaps
from ratchet.trajectory_collector.nats_streams import Streams

log = structlog.get_logger()

AT_ONCE = 500
"""Silent trajectories that one query returns."""
SIDE_BY_SIDE = 8
"""Those that are in memory at once."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a trajectory without an end must be silent, and how far back a start searches for such."""

    idle: timedelta
    lookback: timedelta
    by_role: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """For the roles that differ."""

    def groups(self) -> Mapping[Roles, timedelta]:
        """Roles that wait equally long. Each group has an order of its own in which its trajectories fall silent."""
        spans: dict[timedelta, set[str]] = {}
        for role, span in self.by_role.items():
            spans.setdefault(span, set()).add(role)
        groups = {Roles(frozenset(named), among=True): span for span, named in spans.items()}
        return {**groups, Roles(frozenset(self.by_role)): self.idle}


@dataclass(frozen=True)
class IdleAssembler:
    """Goes through silent trajectories in the order in which they fell silent. A start begins `lookback` ago.

    Silence counts only up to the point where the collector has settled all messages of the broker (`settled_until`), so
    that no assembly overtakes an end that waits in a stream. Any number of collectors may do this: they publish the
    same messages.
    """

    bus: Bus
    facts: Facts
    streams: Streams
    consumers: Mapping[str, str]
    """Durable by stream, for the streams that may hold messages of a trajectory."""
    patience: Patience
    inference: Inference
    _done: dict[Roles, Silence] = field(default_factory=dict[Roles, Silence], init=False)
    """Every trajectory of these roles that fell silent up to here was published, or cannot be assembled."""

    async def tick(self) -> None:
        """Publish the trajectories that have been silent for long enough."""
        settled = [await self.streams.settled_until(stream, durable) for stream, durable in self.consumers.items()]
        for roles, idle in self.patience.groups().items():
            await self._pass_through(roles, min(settled) - idle)

    async def _pass_through(self, roles: Roles, before: datetime) -> None:
        done = self._done.get(roles) or Silence(before - self.patience.lookback)
        while True:
            silent = await self.facts.idle(done, before, AT_ONCE, roles)
            unreported = [silence for silence, is_unreported in silent if is_unreported]
            for start in range(0, len(unreported), SIDE_BY_SIDE):
                await self._publish_all(unreported[start : start + SIDE_BY_SIDE])
            if not silent:
                return
            done = self._done[roles] = silent[-1][0]

    async def _publish_all(self, silent: Sequence[Silence]) -> None:
        """Publish what these runs add up to. A run that cannot be read or assembled is counted, and the others go on.

        Their runs are read together, and one group after the other: ends, which agents report, wait for the same
        warehouse.
        """
        async for part, runs in in_halves(silent, self._runs):
            if isinstance(runs, Unavailable):
                raise runs
            if isinstance(runs, Exception):
                _count_unassembled(part[0], runs)
            else:
                await asyncio.gather(
                    *(self._publish(silence, runs[silence.role, silence.trajectory_id]) for silence in part)
                )

    async def _runs(self, silent: Sequence[Silence]) -> Mapping[RunKey, Run]:
        keys = [(silence.role, silence.trajectory_id) for silence in silent]
        return {key: run async for key, run in self.facts.runs(keys)}

    async def _publish(self, silence: Silence, run: Run) -> None:
        try:
            assembled = await asyncio.to_thread(assemble_idle, silence.role, silence.trajectory_id, run, self.inference)
            report_gaps(silence.trajectory_id, run, assembled)
            for trajectory in assembled.trajectories:
                await self.bus.publish_record(self.bus.seal(trajectory).with_message_id(assembly_id(trajectory)))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: what one agent sent must not stop the service
            _count_unassembled(silence, error)
            return
        metrics.IDLE.inc()


def _count_unassembled(silence: Silence, error: Exception) -> None:
    metrics.UNASSEMBLED.inc()
    report = log.warning if isinstance(error, ChatError | ContractError) else log.error
    report("idle trajectory cannot be assembled", trajectory=silence.trajectory_id, reason=str(error)[:500])
