"""State that is a fold over a stream: value and applied sequence change together, by compare-and-set.

Folding the whole stream again gives the same state. Acked consumers are never used for this: one redelivery
would apply an event twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import nats.errors
import structlog
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from ratchet.kernel.bus import Bus
from ratchet.kernel.errors import Conflict, ContractError, Unavailable
from ratchet.kernel.kv import Bucket
from ratchet.kernel.puller import Puller
from ratchet.kernel.received import Received
from ratchet.messages import Message

log = structlog.get_logger()

S = TypeVar("S")
INACTIVE_S = 30.0
"""The server forgets the ephemeral consumer of a projection that died after this long."""


class Folded(msgspec.Struct, Generic[S], frozen=True):
    """A state and the sequence of the last message that is in it."""

    applied_seq: int
    state: S


@dataclass(frozen=True)
class Fold(Generic[S]):
    """What is folded, into which states, and how."""

    name: str
    stream: str
    topics: Sequence[str]
    bucket: str
    kind: type[S]
    """Type of the state."""
    key_of: Callable[[Received[Message]], str | None]
    """Which state a message belongs to; None for none."""
    step: Callable[[S | None, Received[Message]], S]
    """The next state. Pure."""


class Projection(Generic[S]):
    """Keeps the states of a `Fold` in its bucket, under `<name>.<key>`.

    One process owns a projection. A second one is harmless: the fold is deterministic, and whoever loses a
    compare-and-set reads the state again and goes on from there.
    """

    def __init__(self, bus: Bus, fold: Fold[S]) -> None:
        self._bus = bus
        self._fold = fold
        self._name = fold.name
        self._states: Bucket[Folded[S]] = bus.bucket(fold.bucket, Folded[fold.kind])
        self._cursors: Bucket[int] = bus.bucket(fold.bucket, int)
        self._folded: dict[str, Folded[S]] = {}
        self._revisions: dict[str, int] = {}
        self._applied = 0
        self._progress = asyncio.Condition()
        self._stopping = False

    def state(self, key: str) -> S | None:
        """The newest state of `key`, None while nothing was folded into it."""
        folded = self._folded.get(key)
        return folded.state if folded else None

    def states(self) -> dict[str, S]:
        """All states by key."""
        return {key: folded.state for key, folded in self._folded.items()}

    @property
    def stream(self) -> str:
        """The stream that is folded."""
        return self._fold.stream

    def sequence(self, key: str) -> int:
        """Sequence of the last message that is in the state of `key`; 0 while there is none."""
        folded = self._folded.get(key)
        return folded.applied_seq if folded else 0

    async def wait_for(self, sequence: int, deadline_s: float = 5.0) -> None:
        """Return once `sequence` is folded. Raises `Unavailable` when that takes longer than the deadline."""
        try:
            async with asyncio.timeout(deadline_s), self._progress:
                await self._progress.wait_for(lambda: self._applied >= sequence)
        except TimeoutError as error:
            raise Unavailable(f"projection {self._name} is behind: {self._applied} of {sequence}") from error

    async def run(self) -> None:
        """Fold until stopped; whatever breaks, read the stored state again and go on from there."""
        while not self._stopping:
            try:
                await self._follow()
            except (Unavailable, Conflict, nats.errors.Error, JetStreamError, TimeoutError) as error:
                log.warning("projection starts over", projection=self._name, reason=repr(error))
                await asyncio.sleep(0.5)

    async def stop(self) -> None:
        """Store what is folded and return from `run`."""
        self._stopping = True

    async def _follow(self) -> None:
        await self._load()
        puller = self._puller()
        await puller.open()
        expected = 1
        try:
            while not self._stopping:
                batch = await puller.next_batch(wait_s=0.5)
                delivered = [message.metadata.sequence.consumer for message in batch]
                if delivered != [*range(expected, expected + len(batch))]:
                    log.warning("projection missed a message, reading again", projection=self._name)
                    return
                expected += len(batch)
                if batch:
                    await self._apply(batch)
        finally:
            await puller.close()

    async def _load(self) -> None:
        """Take over what is stored. The cursor is read first: a state may be ahead of it, but must not be behind."""
        prefix = f"{self._name}."
        cursor = await self._cursors.get(f"cursor-{self._name}")
        stored = await self._states.items(lambda key: key.startswith(prefix))
        self._folded = {key.removeprefix(prefix): entry.value for key, entry in stored.items()}
        self._revisions = {key.removeprefix(prefix): entry.revision for key, entry in stored.items()}
        async with self._progress:
            self._applied = cursor.value if cursor else 0
            self._progress.notify_all()

    def _puller(self) -> Puller:
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self._applied + 1,
            filter_subjects=self._bus.contracts.filters(self._fold.topics),
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        return Puller(self._bus.nc, self._fold.stream, config, batch=512, linger_s=0.01)

    async def _apply(self, batch: Sequence[Msg]) -> None:
        """Fold a batch, store the states that changed, then the cursor: a crash in between folds nothing twice."""
        changed: set[str] = set()
        for message in batch:
            with suppress(ContractError):  # the consumer loop has buried it; a fold skips it, every time alike
                received, _ = self._bus.read(message, self._fold.topics)
                key = self._fold.key_of(received)
                if key is not None and self._fold_one(key, received):
                    changed.add(key)
        for key in sorted(changed):
            await self._store(key)
        last = batch[-1].metadata.sequence.stream
        await self._cursors.put(f"cursor-{self._name}", last)
        async with self._progress:
            self._applied = last
            self._progress.notify_all()

    def _fold_one(self, key: str, received: Received[Message]) -> bool:
        folded = self._folded.get(key)
        if folded is not None and folded.applied_seq >= received.sequence:
            return False
        state = self._fold.step(folded.state if folded else None, received)
        self._folded[key] = Folded(received.sequence, state)
        return True

    async def _store(self, key: str) -> None:
        name, folded = f"{self._name}.{key}", self._folded[key]
        if key in self._revisions:
            self._revisions[key] = await self._states.update(name, folded, self._revisions[key])
        else:
            self._revisions[key] = await self._states.create(name, folded)
