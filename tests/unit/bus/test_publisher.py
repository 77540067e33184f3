"""Durable publishing: batches, refusals, and the errors that callers get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import nats.errors
import pytest

from ratchet.bus.envelope import Record
from ratchet.bus.publisher import LOST, MAX_BATCH, Publisher, Sending
from ratchet.bus.testing import eventually
from ratchet.core.errors import BusUnavailable, Rejected


@dataclass
class Reply:
    data: bytes


@dataclass
class Stream:
    """A broker connection that stores like a JetStream stream: atomic batches, duplicate ids, errors."""

    error: dict[str, object] | None = None
    silent: bool = False
    answering: asyncio.Event | None = None
    """Requests wait until it is set."""
    stored: list[str] = field(default_factory=list)
    requests: int = 0
    _open: list[str] = field(default_factory=list)

    async def request(self, subject: str, body: bytes, timeout: float, headers: dict[str, str]) -> Reply:  # noqa: ASYNC109 - nats-py's signature
        self.requests += 1
        if self.answering is not None:
            await self.answering.wait()
        if self.silent:
            raise nats.errors.TimeoutError
        if self.error:
            return Reply(json.dumps({"error": self.error}).encode())
        if "Nats-Batch-Id" not in headers:
            self._store([headers["Nats-Msg-Id"]])
            return Reply(b"{}")
        self._open.append(headers["Nats-Msg-Id"])
        if "Nats-Batch-Commit" not in headers:
            return Reply(b"")
        batch, self._open = self._open, []
        if set(batch) & set(self.stored):
            return Reply(json.dumps({"error": {"err_code": 10201, "description": "duplicate"}}).encode())
        self._store(batch)
        return Reply(b"{}")

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        self._open.append(headers["Nats-Msg-Id"])

    def _store(self, ids: Sequence[str]) -> None:
        self.stored += [name for name in ids if name not in self.stored]


def sending(name: str) -> Sending:
    record = Record("s", {"Nats-Msg-Id": name}, b"{}")
    return Sending(record, asyncio.get_running_loop().create_future())


async def publish(stream: Stream, names: Sequence[str], *, atomic: bool = True) -> list[BaseException | None]:
    publisher = Publisher(stream, "S", atomic=atomic)  # type: ignore[arg-type]
    batch = [sending(name) for name in names]
    for one in batch:
        publisher.enqueue(one)
    return await asyncio.gather(*(one.done for one in batch), return_exceptions=True)


async def test_messages_that_come_together_cost_two_round_trips_in_order() -> None:
    stream = Stream()
    names = [f"m{n}" for n in range(100)]
    assert await publish(stream, names) == [None] * 100
    assert (stream.stored, stream.requests) == (names, 2)


async def test_more_than_one_batch_is_sent_in_order() -> None:
    stream = Stream()
    names = [f"m{n}" for n in range(MAX_BATCH * 2 + 7)]
    await publish(stream, names)
    assert stream.stored == names


async def test_a_batch_refused_for_a_known_message_is_stored_message_by_message() -> None:
    stream = Stream(stored=["b"])
    assert await publish(stream, ["a", "b", "c"]) == [None] * 3
    assert stream.stored == ["b", "a", "c"]


async def test_a_stream_without_batches_gets_single_messages() -> None:
    stream = Stream()
    await publish(stream, ["a", "b"], atomic=False)
    assert (stream.stored, stream.requests) == (["a", "b"], 2)


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (Stream(silent=True), BusUnavailable),
        (Stream(error={"err_code": 10077, "description": "maximum messages exceeded"}), BusUnavailable),
        (Stream(error={"err_code": 10054, "description": "message size exceeds maximum allowed"}), Rejected),
    ],
)
async def test_every_caller_learns_why_its_message_was_not_stored(stream: Stream, error: type[Exception]) -> None:
    results = await publish(stream, ["a", "b", "c"])
    assert [type(result) for result in results] == [error] * 3
    assert stream.stored == []


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_lost_connection_fails_sent_and_waiting_messages_at_once(atomic: bool) -> None:
    stream = Stream(answering=asyncio.Event())
    publisher = Publisher(stream, "S", atomic=atomic)  # type: ignore[arg-type]
    sent = [sending(f"m{n}") for n in range(MAX_BATCH + 1)]  # one more than a batch takes
    for one in sent:
        publisher.enqueue(one)
    await eventually(lambda: _asked(stream))
    publisher.connection_lost()
    results = await asyncio.gather(*(one.done for one in sent), return_exceptions=True)
    assert {str(result) for result in results} == {LOST}
    await publisher.drain()

    stream.answering.set()
    later = sending("later")
    publisher.enqueue(later)
    await later.done
    assert stream.stored == ["later"]


async def _asked(stream: Stream) -> bool:
    return stream.requests > 0
