"""What happens to a role's trajectories: its turns and rewards, read in order from where a rollout has got to."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from ratchet.canary_deployer.domain.outcomes import Call, Score, call_of, score_of
from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import BusUnavailable, ContractError
from ratchet.kernel.puller import Puller
from ratchet.kernel.received import Received
from ratchet.messages import Message, Reward, Turn
from ratchet.messages.base import role_subject

log = structlog.get_logger()

TURNS, REWARDS = "RL_TURNS", "RL_REWARDS"
INACTIVE_S = 30.0
"""The server forgets the consumer of a deployer that died after this long."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages, and the place in both streams after them."""

    messages: Sequence[Call | Score]
    turn_seq: int
    reward_seq: int


class Events(Protocol):
    """Turns and rewards of one role from a place on. Turns of a batch come first: a reward follows its calls."""

    async def next(self, wait_s: float) -> Batch:
        """What has arrived; waits up to `wait_s` for a reward. Raises `Unavailable` when the place is lost."""
        ...

    async def caught_up(self) -> bool:
        """Whether every reward that the stream holds has been handed out."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class NatsEvents:
    """Two ordered consumers, recreated by the caller (from its own place) when a message is missing."""

    def __init__(self, bus: Bus, turns: _Tail, rewards: _Tail) -> None:
        self._bus = bus
        self._turns = turns
        self._rewards = rewards

    @classmethod
    async def open(cls, bus: Bus, role: str, turn_seq: int, reward_seq: int) -> NatsEvents:
        """Read on after these places."""
        turns = _Tail(bus, TURNS, role_subject(Turn.TOPIC, role), turn_seq)
        rewards = _Tail(bus, REWARDS, role_subject(Reward.TOPIC, role), reward_seq)
        await turns.open()
        await rewards.open()
        return cls(bus, turns, rewards)

    async def next(self, wait_s: float) -> Batch:
        """See `Events`."""
        scored = await self._rewards.next(wait_s)
        called: list[Received[Message]] = []
        while part := await self._turns.next(0):
            called += part
        calls = [call_of(one.message, one.time.timestamp()) for one in called if isinstance(one.message, Turn)]
        scores = [score_of(one.message, one.time.timestamp()) for one in scored if isinstance(one.message, Reward)]
        return Batch([*calls, *scores], self._turns.applied_seq, self._rewards.applied_seq)

    async def caught_up(self) -> bool:
        """See `Events`."""
        return await self._rewards.caught_up()

    async def close(self) -> None:
        """See `Events`."""
        await self._turns.close()
        await self._rewards.close()


class _Tail:
    """One subject of one stream from a place on, without gaps."""

    def __init__(self, bus: Bus, stream: str, subject: str, applied_seq: int) -> None:
        self._bus = bus
        self._stream = stream
        self._name = f"canary_deployer-{uuid.uuid4().hex[:12]}"
        self._handed_out = 0
        self.applied_seq = applied_seq
        config = ConsumerConfig(
            name=self._name,
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=applied_seq + 1,
            filter_subject=subject,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        self._puller = Puller(bus.nc, stream, config, batch=512, linger_s=0.01)

    async def open(self) -> None:
        try:
            await self._puller.open()
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {self._stream}: {error!r}") from error

    async def next(self, wait_s: float) -> list[Received[Message]]:
        """The next messages; an invalid one is skipped, every time alike."""
        try:
            batch = await self._puller.next_batch(wait_s)
        except nats.errors.Error as error:
            raise BusUnavailable(f"cannot read {self._stream}: {error!r}") from error
        found: list[Received[Message]] = []
        for message in batch:
            self._advance(message)
            try:
                found.append(self._bus.read(message)[0])
            except ContractError as error:
                log.warning("message skipped", stream=self._stream, sequence=self.applied_seq, reason=str(error))
        return found

    async def caught_up(self) -> bool:
        try:
            info = await self._bus.nc.jetstream().consumer_info(self._stream, self._name)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot ask for {self._stream}: {error!r}") from error
        delivered = info.delivered.consumer_seq if info.delivered else 0
        return info.num_pending == 0 and delivered == self._handed_out

    async def close(self) -> None:
        await self._puller.close()

    def _advance(self, message: Msg) -> None:
        place = message.metadata.sequence
        if place.consumer != self._handed_out + 1:
            raise BusUnavailable(f"a message of {self._stream} is missing: reading again")
        self._handed_out = place.consumer
        self.applied_seq = place.stream
