"""What a dead letter keeps of its message: all of a small one, less the secrets in it, and nothing of a large body."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ratchet.bus.consumer import Dead, Outcome, subscribe
from ratchet.bus.deadletter import (
    IN_STREAM,
    KEPT_OF_BATCH,
    LARGEST_HEADERS,
    LARGEST_KEPT,
    REDACTED,
    WHOLE,
    with_message,
)
from ratchet.bus.received import Received
from ratchet.bus.testing import FakeBroker, FakeBus, FakeClock, eventually
from ratchet.core.rules.redaction import redacted
from tests.support.running import running
from tests.support.shop import Order, Undeliverable, shop

SECRET = "sk-verysecret"


async def giving_up(batch: Sequence[Received[Any]]) -> Sequence[Outcome]:
    return [Dead("refused", "no such country") for _ in batch]


def hiding(text: str) -> str:
    return text.replace(SECRET, "***")


def failing(text: str) -> str:
    raise RecursionError(text)


async def letters(*orders: Order, redact: Any = hiding, by: Sequence[str] = ("bills",)) -> list[Undeliverable]:
    """The dead letters of these orders, which all of these consumers give up."""
    bus = FakeBus(FakeBroker(shop(redact=redact), FakeClock(datetime.now(UTC))))
    await bus.publish_all(orders)
    sent = len(orders) * len(by)
    async with running(*(subscribe(bus, name, {Order: giving_up}) for name in by)):

        async def dead() -> bool:
            return len(bus.published(Undeliverable)) + bus.broker.duplicates == sent

        await eventually(dead)
    return bus.published(Undeliverable)


async def test_dead_letter_keeps_a_small_message_as_it_was() -> None:
    (letter,) = await letters(Order(number=1))
    assert (letter.kept, base64.b64decode(letter.body), letter.headers["ce-id"]) == (
        WHOLE,
        b'{"number":1}',
        "order-1",
    )


@pytest.mark.parametrize("size", [10, LARGEST_KEPT // 2])
async def test_dead_letter_keeps_no_secret(size: int) -> None:
    (letter,) = await letters(Order(number=1, note=f"{SECRET} {'x' * size}"))
    assert letter.kept == REDACTED
    assert base64.b64decode(letter.body).startswith(b'{"number":1,"note":"*** xxx')


@pytest.mark.parametrize("name", ["password", "x-api-key", "cookie"])
def test_dead_letter_hides_a_header_by_its_name(name: str) -> None:
    bare = Undeliverable(
        stream="ORDERS",
        sequence=1,
        consumer="bills",
        original_subject="order.v1",
        reason="invalid",
        detail="",
        at=datetime.now(UTC),
        headers={},
        body="",
    )
    letter = with_message(bare, {name: "of no known form", "ce-id": "order-1"}, b"{}", b"{}", redacted)
    assert (letter.kept, letter.headers) == (REDACTED, {name: letter.headers[name], "ce-id": "order-1"})
    assert letter.headers[name].startswith("[REDACTED:")


@pytest.mark.parametrize("packed", [True, False])
async def test_dead_letter_leaves_a_large_body_in_its_stream(packed: bool) -> None:
    note = "x" * LARGEST_KEPT if packed else "".join(chr(33 + number % 90) for number in range(LARGEST_KEPT))
    (letter,) = await letters(Order(number=1, note=note))
    assert (letter.kept, letter.body, letter.headers["ce-id"]) == (IN_STREAM, "", "order-1")
    assert letter.stored_at is not None


async def test_dead_letters_of_a_batch_keep_bounded_bodies_together() -> None:
    dead = await letters(*(Order(number=number, note="x" * (LARGEST_KEPT - 100)) for number in range(1, 101)))
    kept = [len(base64.b64decode(letter.body)) for letter in dead if letter.kept == WHOLE]
    assert 0 < sum(kept) <= KEPT_OF_BATCH < 100 * LARGEST_KEPT
    assert len(dead) == 100


async def test_dead_letter_keeps_no_headers_beyond_their_bound() -> None:
    bus = FakeBus(FakeBroker(shop(), FakeClock(datetime.now(UTC))))
    long = "y" * LARGEST_HEADERS
    record = bus.seal(Order(number=1))
    headers = {**record.headers, "ce-correlationid": long}
    await bus.publish_record(msgspec.structs.replace(record, headers=headers))
    async with running(subscribe(bus, "bills", {Order: giving_up})):

        async def dead() -> bool:
            return bool(bus.published(Undeliverable))

        await eventually(dead)
    (letter,) = bus.published(Undeliverable)
    assert (letter.kept, letter.headers, letter.body) == (IN_STREAM, {}, "")
    assert long not in str(bus.broker.stored[-1].headers)


async def test_dead_letter_keeps_nothing_of_a_text_that_cannot_be_searched() -> None:
    (letter,) = await letters(Order(number=1), redact=failing)
    assert (letter.kept, letter.body, letter.headers) == (IN_STREAM, "", {})


async def test_a_message_has_one_dead_letter_however_many_consumers_give_it_up() -> None:
    dead = await letters(Order(number=1), Order(number=2), by=("bills", "patient-bills"))
    assert sorted(letter.sequence for letter in dead) == [1, 2]
