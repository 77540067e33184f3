"""What a publisher holds of what was acknowledged, and how it notices that its stream counts backwards."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest

from ratchet.bus.acknowledged import KEPT_BYTES, KEPT_S, RECORD_BYTES, Acknowledged
from ratchet.bus.envelope import Record
from ratchet.bus.publisher import REFUSED_S, Publisher, Sending
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeClock, eventually
from ratchet.bus.upkeep import Upkeep
from tests.support.running import forgetful
from tests.support.shop import shop


def record(name: str, size: int = 2) -> Record:
    return Record("s", {"Nats-Msg-Id": name}, b"x" * size)


def names(records: list[Record]) -> list[str]:
    return [kept.headers["Nats-Msg-Id"] for kept in records]


def test_acknowledged_messages_are_held_for_some_minutes() -> None:
    clock = FakeClock()
    acknowledged = Acknowledged(clock.monotonic)
    acknowledged.add("S", [1, 2], [record("a"), record("b")])
    clock.advance(KEPT_S - 1)
    acknowledged.add("S", [3], [record("c")])
    clock.advance(2)
    acknowledged.forget_old()
    assert acknowledged.gone("S") == 2
    assert names(acknowledged.take("S")) == ["c"]


def test_acknowledged_messages_take_bounded_memory() -> None:
    acknowledged = Acknowledged(lambda: 0.0)
    size = KEPT_BYTES // 8 - RECORD_BYTES
    for number in range(1, 12):
        acknowledged.add("S", [number], [record(str(number), size)])
    assert acknowledged.gone("S") == 3
    assert names(acknowledged.take("S")) == [str(number) for number in range(4, 12)]


def test_messages_of_other_streams_stay_when_those_of_one_are_taken() -> None:
    acknowledged = Acknowledged(lambda: 0.0)
    acknowledged.add("S", [1], [record("a")])
    acknowledged.add("T", [1], [record("b")])
    assert names(acknowledged.take("S")) == ["a"]
    assert acknowledged.streams() == ["T"]


@dataclass
class Reply:
    data: bytes


@dataclass
class Counting:
    """A stream that answers with the sequence that comes next, or with an error."""

    last: int = 0
    known: str = ""
    error: str = ""

    async def request(self, subject: str, body: bytes, timeout: float, headers: dict[str, str]) -> Reply:  # noqa: ASYNC109 - nats-py's signature
        if self.error:
            return Reply(json.dumps({"error": {"err_code": 10077, "description": self.error}}).encode())
        if headers["Nats-Msg-Id"] == self.known:
            return Reply(json.dumps({"stream": "S", "seq": 1, "duplicate": True}).encode())
        self.last += 1
        return Reply(json.dumps({"stream": "S", "seq": self.last}).encode())


async def put(publisher: Publisher, *messages: str) -> None:
    sent = [Sending(record(name), asyncio.get_running_loop().create_future()) for name in messages]
    for sending in sent:
        publisher.enqueue(sending)
    await asyncio.gather(*(sending.done for sending in sent), return_exceptions=True)
    await publisher.drain()


def publisher_of(stream: Counting, rewound: list[int]) -> Publisher:
    return Publisher(
        stream,  # type: ignore[arg-type]
        "S",
        atomic=False,
        acknowledged=Acknowledged(lambda: 0.0),
        on_rewound=lambda: rewound.append(1),
    )


async def test_publisher_notices_a_stream_that_counts_backwards() -> None:
    stream, rewound = Counting(), list[int]()
    publisher = publisher_of(stream, rewound)
    await put(publisher, "a", "b", "c", "d")
    stream.last = 1
    await put(publisher, "e", "f")
    assert (publisher.rewound_to, publisher.last, rewound) == (1, 3, [1])
    await put(publisher, "g")
    assert (publisher.last, rewound) == (4, [1])


async def test_publisher_takes_a_known_message_for_no_rewinding() -> None:
    stream, rewound = Counting(known="a"), list[int]()
    publisher = publisher_of(stream, rewound)
    await put(publisher, "b", "c")
    await put(publisher, "a", "d")
    assert (publisher.rewound_to, rewound) == (None, [])


@pytest.mark.parametrize(
    ("error", "refused"), [("write /1.blk: no space left on device", True), ("maximum bytes exceeded", False)]
)
async def test_publisher_knows_that_its_stream_takes_nothing(error: str, refused: bool) -> None:
    stream, clock = Counting(error=error), FakeClock()
    publisher = Publisher(stream, "S", atomic=False, monotonic=clock.monotonic)  # type: ignore[arg-type]
    await put(publisher, "a")
    assert publisher.refusal is None
    clock.advance(REFUSED_S + 1)
    await put(publisher, "b")
    assert (publisher.refusal is not None) is refused
    assert publisher.refusal is None or error in publisher.refusal
    stream.error = ""
    await put(publisher, "c")
    assert publisher.refusal is None


class Deaf(Counting):
    """Answers nothing, and loses the first cancel of who waits."""

    async def request(self, subject: str, body: bytes, timeout: float, headers: dict[str, str]) -> Reply:  # noqa: ASYNC109 - nats-py's signature
        self.last += 1
        await forgetful()
        raise AssertionError


async def test_connection_may_be_lost_again_before_a_request_has_ended() -> None:
    stream = Deaf()
    publisher = publisher_of(stream, [])
    sending = Sending(record("a"), asyncio.get_running_loop().create_future())
    publisher.enqueue(sending)

    async def asked() -> bool:
        return stream.last == 1

    await eventually(asked)
    for _ in range(2):
        publisher.connection_lost()  # raised, in the task that reconnects, where a time-out had ended already
        for _ in range(3):  # the loop has turned, and the cancel is lost
            await asyncio.sleep(0)
    await end(publisher._task, again_s=0.05)
    assert publisher._task.done()
    assert not sending.done.done()


class Away:
    """A bus without a connection, which counts how often that was looked at."""

    contracts = shop()
    looks = 0

    @property
    def is_connected(self) -> bool:
        self.looks += 1
        return False


async def test_upkeep_looks_when_the_connection_is_back_between_two_looks() -> None:
    bus = Away()
    upkeep = Upkeep(bus)  # type: ignore[arg-type]
    upkeep.begin()

    async def looked() -> bool:
        return bus.looks > before

    for _ in range(2):
        before = bus.looks
        upkeep.reconnected()
        await eventually(looked)
    assert bus.looks >= 2
    await upkeep.stop()
