"""Who else reads a stream, and up to where: what the trimmer must leave alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.projection import positions
from ratchet.contract import Start, Turn, Value, decode, role_subject
from ratchet.contract.state import ROLLOUTS
from ratchet.trajectory_collector.nats_streams import Streams

TAILS = {"RL_TURNS": ("turn_seq", Turn.TOPIC), "RL_STARTS": ("start_seq", Start.TOPIC)}
"""Stream -> the member of a rollout's record that says up to where it was read, and the topic that is read."""
READING = frozenset({"running", "paused", "held", "soaking"})
"""The states of a rollout that reads them. A place of 0 is not in its record."""


class _Tail(Value, frozen=True, kw_only=True):
    """What the deployer's record of a rollout says of its reading."""

    state: str
    role: str
    turn_seq: int = 0
    start_seq: int = 0


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
            tail = _tail(key, bytes(entry.value))
            if tail.state in READING:
                subject = role_subject(topic, tail.role)
                found[f"the rollout of {key}"] = await self._streams.read_by(stream, getattr(tail, member), [subject])
        return found


def _tail(key: str, record: bytes) -> _Tail:
    """A record that cannot be read may be of a rollout under way that has read nothing: it needs everything."""
    try:
        return decode(record, _Tail)
    except msgspec.DecodeError:
        return _Tail(state="running", role=key)
