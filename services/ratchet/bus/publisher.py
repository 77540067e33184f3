"""Durable publishing at speed: a short linger gathers messages into atomic batches.

A stream answers a batch once, so hundreds of messages cost two round trips and one disk sync. A batch that
holds one already known id is refused whole and sent again message by message, which is quicker than halving it.
A broker of one replica syncs before it acknowledges (`sync_interval: always`): its default loses acknowledged messages
at a power failure. A sync for each message would allow about 1,700 of them a second.
Source: NATS ADR-50 (JetStream batch publishing).
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client as Nats

from ratchet.bus.acknowledged import Acknowledged
from ratchet.bus.envelope import Headers, Record
from ratchet.bus.nats_client import Refused
from ratchet.bus.tasks import expire
from ratchet.core.errors import BusUnavailable, NotPermitted, Rejected

LINGER_S = 0.005
"""How long the first message waits for company."""
MAX_BATCH = 500
"""Half of the server's limit of 1,000 messages a batch."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Keeps one batch from occupying the connection for long."""
ACK_DEADLINE_S = 5.0
"""After this long without an answer the outcome is unknown; publishing again is safe, ids make it idempotent."""
REFUSED_S, TRIED_S = 15.0, 60.0
"""A stream that has taken nothing for so long, though it was tried lately, is a fault: a moment passes by itself."""
LOST = "the connection to the broker was lost"
FULL = ": maximum "
"""How the refusal of a stream goes on that holds as much as it may."""
_REFUSED_FOR_GOOD = {10054, 10060, 10071, 10097}
"""Message exceeds the maximum size; wrong expected stream or sequence; headers exceed the maximum size."""
_BATCH_ERRORS = range(10174, 10212)
"""Error codes of atomic batches; 10201 is a duplicate id inside one."""


@dataclass(slots=True)
class Sending:
    """A record on its way. `done` resolves when a stream has stored it."""

    record: Record
    done: asyncio.Future[None] = field(repr=False)


@dataclass(slots=True)
class Publisher:
    """Publishes to one stream, in the order of `enqueue`."""

    nc: Nats
    stream: str
    atomic: bool
    acknowledged: Acknowledged | None = None
    """Holds what the stream has stored."""
    on_rewound: Callable[[], None] | None = None
    """Called when the stream counts backwards."""
    monotonic: Callable[[], float] = time.monotonic
    last: int = field(default=0, init=False)
    """The highest sequence that the stream has acknowledged."""
    made: str = field(default="", init=False)
    """When the stream was made, once that is known."""
    rewound_to: int | None = field(default=None, init=False)
    """The sequence behind which the stream has counted again, until that is seen to."""
    _queue: list[Sending] = field(default_factory=list[Sending], init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _answer_due: asyncio.Timeout | None = field(default=None, init=False)
    _refusal: tuple[float, float, str] | None = field(default=None, init=False)
    """Since when, until when and why the stream has taken nothing."""

    @property
    def refusal(self) -> str | None:
        """Why the stream has taken nothing for a while, although the broker is connected."""
        if self._refusal is None:
            return None
        since, until, reason = self._refusal
        now = self.monotonic()
        if now - since < REFUSED_S or now - until > TRIED_S:
            return None
        return f"{self.stream} has taken nothing for {now - since:.0f} s: {reason}"

    def enqueue(self, sending: Sending) -> None:
        """Add a message to the next batch."""
        self._queue.append(sending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def drain(self) -> None:
        """Wait until everything that was enqueued is stored or has failed."""
        while self._task is not None and not self._task.done():
            await self._task

    def connection_lost(self) -> None:
        """Fail what was sent, for no answer can come, and what waits, so that its owner can keep it on disk.

        What is enqueued later goes to the connection, which sends it once the broker is back.
        """
        expire(self._answer_due)
        queue, self._queue = self._queue, []
        _fail(queue, BusUnavailable(LOST))

    async def _flush(self) -> None:
        if len(self._queue) < MAX_BATCH:
            await asyncio.sleep(LINGER_S)
        while self._queue:
            size = count = 0
            for sending in self._queue[:MAX_BATCH]:
                size += len(sending.record.body)
                if count and size > MAX_BATCH_BYTES:
                    break
                count += 1
            batch, self._queue = self._queue[:count], self._queue[count:]
            try:
                async with asyncio.timeout(None) as self._answer_due:
                    await self._send(batch)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                if self._answer_due is not None and self._answer_due.expired():
                    reason = LOST
                elif isinstance(error, nats.errors.NoRespondersError):
                    reason = f"the broker has no stream {self.stream} that takes {batch[0].record.subject}"
                else:
                    reason = f"the broker does not answer: {error or type(error).__name__}"
                self._refused(batch, BusUnavailable(reason))
            finally:
                self._answer_due = None

    async def _send(self, batch: Sequence[Sending]) -> None:
        if len(batch) == 1 or not self.atomic:
            await self._send_singly(batch)
            return
        try:
            answer = await self._send_atomic(batch)
        except Refused:
            await self._send_singly(batch)  # one of another subject may be permitted
            return
        if "error" not in answer:
            _succeed(batch)
            last = answer.get("seq", 0)
            self._stored(range(last - len(batch) + 1, last + 1), batch)
        elif answer["error"].get("err_code") in {*_BATCH_ERRORS, *_REFUSED_FOR_GOOD}:
            await self._send_singly(batch)  # one that the stream refuses costs no other
        else:
            self._refused(batch, _error(answer["error"], self.stream))

    async def _send_atomic(self, batch: Sequence[Sending]) -> dict[str, Any]:
        """All or none. The first answer tells early that the stream refuses; the last one is the commit."""
        batch_id = uuid.uuid4().hex
        answer: dict[str, Any] = {}
        for number, sending in enumerate(batch, 1):
            headers = {**sending.record.headers, "Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            if number == len(batch):
                headers["Nats-Batch-Commit"] = "1"
            if number in {1, len(batch)}:
                answer = await self._request(sending, headers)
                if "error" in answer:
                    return answer
            else:
                await self.nc.publish(sending.record.subject, sending.record.body, headers=headers)
        return answer

    async def _send_singly(self, batch: Sequence[Sending]) -> None:
        """In order and without waiting in between; a known id is confirmed as a duplicate."""
        answers = await asyncio.gather(*(self._send_one(sending) for sending in batch))
        stored = [
            (answer.get("seq", 0), sending)
            for answer, sending in zip(answers, batch, strict=True)
            if "error" not in answer and not answer.get("duplicate")
        ]
        if stored:
            self._stored([sequence for sequence, _ in stored], [sending for _, sending in stored])

    async def _send_one(self, sending: Sending) -> dict[str, Any]:
        try:
            answer = await self._request(sending, sending.record.headers)
        except Refused as error:  # its subject, not its stream: others of the batch may go there
            _fail([sending], NotPermitted(str(error)))
            return {"error": {}}
        if "error" in answer:
            self._refused([sending], _error(answer["error"], self.stream))
        else:
            _succeed([sending])
        return answer

    def _stored(self, sequences: Sequence[int], batch: Sequence[Sending]) -> None:
        """The stream has these now; it counts backwards where it had acknowledged others under their numbers."""
        self._refusal = None
        first, last = min(sequences), max(sequences)
        if first <= 0:
            return
        rewound = first <= self.last
        if rewound:
            self.rewound_to = min(first - 1, self.rewound_to if self.rewound_to is not None else first)
        self.last = last if rewound else max(last, self.last)
        if self.acknowledged is not None:
            self.acknowledged.add(self.stream, sequences, [sending.record for sending in batch])
        if rewound and self.on_rewound is not None:
            self.on_rewound()

    def _refused(self, batch: Sequence[Sending], error: BusUnavailable | Rejected) -> None:
        """Fail them; what the stream refuses for good, or because it is full, says nothing of the broker."""
        if isinstance(error, BusUnavailable) and str(error) != LOST and FULL not in str(error):
            now = self.monotonic()
            since = self._refusal[0] if self._refusal is not None else now
            self._refusal = since, now, str(error)
        _fail(batch, error)

    async def _request(self, sending: Sending, headers: Headers) -> dict[str, Any]:
        reply = await self.nc.request(
            sending.record.subject, sending.record.body, timeout=ACK_DEADLINE_S, headers=headers
        )
        return json.loads(reply.data) if reply.data else {}


def _error(error: dict[str, Any], stream: str) -> BusUnavailable | Rejected:
    text = f"{stream}: {error.get('description', 'refused')}"
    return Rejected(text) if error.get("err_code") in _REFUSED_FOR_GOOD else BusUnavailable(text)


def _succeed(batch: Sequence[Sending]) -> None:
    for sending in batch:
        if not sending.done.done():
            sending.done.set_result(None)


def _fail(batch: Sequence[Sending], error: BusUnavailable | Rejected) -> None:
    for sending in batch:
        if not sending.done.done():
            sending.done.set_exception(error)
