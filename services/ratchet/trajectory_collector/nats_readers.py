"""The other readers of a stream, and up to where each has read: the trimmer must leave the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.projection import positions
from ratchet.core.contract import Feedback, Start, Turn, Value, decode, role_subject
from ratchet.core.contract.state import ROLLOUTS
from ratchet.trajectory_collector.nats_streams import Streams

TAILS = {
    "RL_TURNS": ("turn_seq", Turn.TOPIC),
    "RL_STARTS": ("start_seq", Start.TOPIC),
    "RL_FEEDBACK": ("feedback_seq", Feedback.TOPIC),
}
"""Stream -> the member of a rollout's record up to which the deployer has read it, and the topic that it reads."""
READING = frozenset({"running", "paused", "held", "suspended", "soaking"})
"""The states in which a rollout reads them. Its record leaves out a place of 0."""


class _Tail(Value, frozen=True, kw_only=True):
    """The part of the deployer's record of a rollout that is about its reading."""

    state: str
    role: str
    turn_seq: int = 0
    start_seq: int = 0
    feedback_seq: int = 0


class NatsReaders:
    """Durable consumers, projections and rollouts, as `topics.json` declares them and the broker knows them."""

    def __init__(self, bus: Bus, streams: Streams, absent: Collection[str]) -> None:
        """`absent`: services and readers that this installation does not run."""
        self._bus = bus
        self._streams = streams
        self._absent = frozenset(absent)

    async def read_up_to(self, stream: str) -> Mapping[str, int]:
        """By name, up to where each reader has read. A reader that never began needs every message.

        Raises `Unavailable`.
        """
        every = self._bus.contracts.consumers.values()
        optional = {reader.name for reader in every if reader.optional}
        declared = {
            reader.name: 0
            for reader in every
            if reader.stream == stream and not {*self._absent, *optional} & {reader.name, reader.service}
        }
        settled = await self._streams.settled_by(stream)
        durable = {name: sequence for name, sequence in settled.items() if name not in optional}
        projections: dict[str, int] = {}
        for position in await positions(self._bus):
            reader = self._bus.contracts.projections[position.projection]
            if position.stream == stream and not self._absent & {reader.name, reader.service}:
                subjects = self._bus.contracts.filters(reader.topics)
                projections[reader.name] = await self._streams.read_by(stream, position.sequence, subjects)
        return {**declared, **durable, **projections, **await self._rollouts(stream)}

    async def _rollouts(self, stream: str) -> Mapping[str, int]:
        """Rollouts under way read turns, starts and feedback of their role, each from the place in its record.

        A record that cannot be read may belong to a rollout that has read nothing yet: it needs every message.
        """
        if stream not in TAILS:
            return {}
        member, topic = TAILS[stream]
        read: dict[str, int] = {}
        for key, entry in (await Bucket(self._bus, ROLLOUTS, msgspec.Raw).items()).items():
            try:
                tail = decode(bytes(entry.value), _Tail)
            except msgspec.DecodeError:
                tail = _Tail(state="running", role=key)
            if tail.state in READING:
                subject = role_subject(topic, tail.role)
                read[f"the rollout of {key}"] = await self._streams.read_by(stream, getattr(tail, member), [subject])
        return read
