"""Who else reads a stream, and up to where: what the trimmer must leave alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from ratchet.kernel.bus import Bus
from ratchet.kernel.projection import positions
from ratchet.messages import Start, Turn, role_subject
from ratchet.messages.state import ROLLOUTS
from ratchet.trajectory_collector.nats_streams import Streams

TAILS = {"RL_TURNS": ("turn_seq", Turn.TOPIC), "RL_STARTS": ("start_seq", Start.TOPIC)}
"""Stream -> the member of a rollout's record that says up to where it was read, and the topic that is read."""
READING = frozenset({"running", "paused", "held", "soaking"})
"""The states of a rollout that reads them. A place of 0 is not in its record."""


class NatsReaders:
    """Durable consumers, projections and rollouts, as `topics.json` declares them and the broker knows them."""

    def __init__(self, bus: Bus, streams: Streams, absent: Collection[str]) -> None:
        """`absent`: services and readers that this installation does not run."""
        self._bus = bus
        self._streams = streams
        self._absent = frozenset(absent)

    async def applied(self, stream: str) -> Mapping[str, int]:
        """By name, up to where each reader needs nothing. One that never began needs everything.

        Raises `Unavailable`.
        """
        declared = {
            reader.name: 0
            for reader in self._bus.contracts.consumers.values()
            if reader.stream == stream and not self._absent & {reader.name, reader.service}
        }
        durable = await self._streams.settled_by(stream)
        return {**declared, **durable, **await self._projections(stream), **await self._rollouts(stream)}

    async def _projections(self, stream: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for position in await positions(self._bus):
            reader = self._bus.contracts.projections[position.projection]
            if position.stream == stream and not self._absent & {reader.name, reader.service}:
                subjects = self._bus.contracts.filters(reader.topics)
                found[reader.name] = await self._streams.read_by(stream, position.sequence, subjects)
        return found

    async def _rollouts(self, stream: str) -> Mapping[str, int]:
        """Rollouts under way read turns and starts of their role, each from a place in its record."""
        if stream not in TAILS:
            return {}
        member, topic = TAILS[stream]
        found: dict[str, int] = {}
        for key, entry in (await self._bus.bucket(ROLLOUTS, msgspec.Raw).items()).items():
            record: Any = msgspec.json.decode(entry.value)
            if isinstance(record, dict) and record.get("state") in READING:  # pyright: ignore[reportUnknownMemberType] - another service's record
                subject = role_subject(topic, str(record.get("role", key)))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
                place = int(record.get(member, 0))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
                found[f"the rollout of {key}"] = await self._streams.read_by(stream, place, [subject])
        return found
