"""The bus behaves alike on nats-server and on the fakes of `ratchet.bus.testing`: the same cases, the same answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.consumer import Dead, Done, Outcome, Retry, each, subscribe
from ratchet.bus.envelope import Record
from ratchet.bus.kv import Bucket
from ratchet.bus.message import Message
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.projection import Projection, Together, positions, project
from ratchet.bus.pull_consumer import ask
from ratchet.bus.received import Received
from ratchet.bus.registry import Bounds
from ratchet.bus.settings import BusSettings
from ratchet.bus.tasks import end
from ratchet.bus.testing import FakeBroker, FakeBus, FakeClock, eventually
from ratchet.core.errors import (
    ConfigError,
    Conflict,
    DigestMismatch,
    InvalidMessage,
    NotFound,
    Rejected,
    Unavailable,
    Unreadable,
)
from tests.support.running import running
from tests.support.shop import Bill, Order, Parcel, Undeliverable, shop

Connect = Callable[[], AbstractAsyncContextManager[Bus]]
CONTRACTS = shop()


@pytest.fixture(params=["fake", "real"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Connections to one broker, which is empty."""
    if request.param == "fake":
        broker = FakeBroker(CONTRACTS, FakeClock(datetime.now(UTC)))

        @asynccontextmanager
        async def fake() -> AsyncIterator[Bus]:
            yield FakeBus(broker)

        return fake
    settings = BusSettings(request.getfixturevalue("nats").url)

    @asynccontextmanager
    async def real() -> AsyncIterator[Bus]:
        bus = await Bus.connect(settings, name="test", contracts=CONTRACTS)
        try:
            await bus.ensure_streams()
            yield bus
        finally:
            await bus.close()

    return real


def orders(*numbers: int, country: str = "de") -> list[Order]:
    return [Order(number=number, country=country) for number in numbers]


async def read(bus: Bus, stream: str) -> list[Received[Any]]:
    """Everything that a stream holds."""
    async with aclosing(OrderedReader(bus, stream).to_end()) as batches:
        return [bus.read(message)[0] async for batch in batches for message in batch]


async def numbers(bus: Bus, stream: str) -> list[int]:
    return [one.message.number for one in await read(bus, stream)]


async def true(value: object) -> bool:
    return bool(value)


# Publishing


async def test_messages_are_stored_in_order_and_each_event_once(connect: Connect) -> None:
    async with connect() as bus:
        await bus.publish(Order(number=3))
        await bus.publish_all(orders(2, 3, 1, 2))
        assert await numbers(bus, "ORDERS") == [3, 2, 1]
        assert (await bus.extent("ORDERS")).last == 3


async def test_an_event_under_another_message_id_is_stored_again(connect: Connect) -> None:
    async with connect() as bus:
        await bus.publish(Order(number=1))
        await bus.publish_record(bus.seal(Order(number=1)).with_message_id("once more"))
        assert [one.event_id for one in await read(bus, "ORDERS")] == ["order-1", "order-1"]


async def test_nothing_is_stored_when_one_message_is_invalid(connect: Connect) -> None:
    async with connect() as bus:
        with pytest.raises(InvalidMessage):
            await bus.publish_all([*orders(1), Order(number=0)])
        with pytest.raises(InvalidMessage):
            await bus.publish(Order(number=1, note=random.Random(1).randbytes(bus.nc.max_payload * 5 // 4).hex()))
        assert (await bus.extent("ORDERS")).last == 0


async def test_an_empty_stream_begins_at_one_and_ends_before_it(connect: Connect) -> None:
    async with connect() as bus:
        empty = await bus.extent("ORDERS")
        await bus.publish_all(orders(1, 2))
        held = await bus.extent("ORDERS")
        assert [(one.first, one.last) for one in (empty, held)] == [(1, 0), (1, 2)]
        assert empty.made == held.made


# Buckets


async def test_a_value_is_changed_by_the_revision_that_was_read(connect: Connect) -> None:
    async with connect() as bus:
        bucket = Bucket(bus, "totals", int)
        assert await bucket.get("de") is None
        first = await bucket.create("de", 1)
        with pytest.raises(Conflict):
            await bucket.create("de", 2)
        second = await bucket.update("de", 2, first)
        with pytest.raises(Conflict):
            await bucket.update("de", 3, first)
        with pytest.raises(Conflict):
            await bucket.update("fr", 3, second)
        entry = await bucket.get("de")
        assert entry is not None
        assert (entry.value, entry.revision) == (2, second)
        assert await bucket.change("de", lambda value: (value or 0) + 5) == 7
        assert await bucket.change("it", lambda value: (value or 0) + 5) == 5


async def test_a_value_that_changed_since_it_was_read_is_not_deleted(connect: Connect) -> None:
    async with connect() as bus:
        bucket = Bucket(bus, "totals", int)
        read = await bucket.put("de", 1)
        newest = await bucket.put("de", 2)
        with pytest.raises(Conflict):
            await bucket.delete("de", read)
        assert await bucket.keys() == ["de"]
        await bucket.delete("de", newest)
        assert await bucket.keys() == []


async def test_deleted_key_is_gone_and_can_be_created_again_under_later_revision(connect: Connect) -> None:
    async with connect() as bus:
        bucket = Bucket(bus, "totals", int)
        await bucket.delete("absent")
        old = await bucket.put("de", 1)
        await bucket.delete("de")
        assert await bucket.get("de") is None
        assert await bucket.keys() == []
        assert await bucket.items() == {}
        assert await bucket.create("de", 2) > old + 1


async def test_keys_are_listed_by_prefix_and_an_unreadable_value_costs_no_other(connect: Connect) -> None:
    async with connect() as bus:
        bucket = Bucket(bus, "totals", int)
        for number, key in enumerate(("de", "de.2", "de.10", "den.1", "fr.1")):
            await bucket.put(key, number)
        unreadable = await Bucket(bus, "totals", str).put("de.2", "two")
        assert await bucket.keys() == ["de", "de.10", "de.2", "den.1", "fr.1"]
        assert await bucket.keys("de") == ["de.10", "de.2"]
        below = await bucket.below("de")
        assert list(below) == ["de.10", "de.2"]
        assert isinstance(below["de.2"], Unreadable)
        assert below["de.2"].revision == unreadable
        assert {key: one.value for key, one in below.items() if not isinstance(one, Unreadable)} == {"de.10": 2}
        with pytest.raises(Unreadable):
            await bucket.get("de.2")
        assert list(await bucket.items(lambda key: key.startswith("den"))) == ["den.1"]
        raw = await Bucket(bus, "totals", msgspec.Raw).get("de.2")
        assert raw is not None
        assert bytes(raw.value) == b'"two"'


async def test_a_watch_begins_with_all_values_and_goes_on_with_changes(connect: Connect) -> None:
    async with connect() as bus:
        bucket = Bucket(bus, "totals", int)
        await bucket.put("de", 1)
        await bucket.put("fr", 2)
        async with aclosing(bucket.watch(lambda key: key != "fr")) as batches:  # type: ignore[type-var]
            seen: list[tuple[str, int | None]] = []

            async def until(count: int) -> list[tuple[str, int | None]]:
                while len(seen) < count:
                    seen.extend((key, entry.value if entry else None) for key, entry in await anext(batches))
                return seen

            assert await until(1) == [("de", 1)]
            await bucket.put("it", 3)
            assert (await until(2))[1:] == [("it", 3)]
            await bucket.put("fr", 4)
            await bucket.delete("de")
            assert (await until(3))[2:] == [("de", None)]


# Consuming


async def test_events_of_a_handler_are_stored_with_their_cause_then_acked(
    connect: Connect,
) -> None:
    handled: list[int] = []

    async def bill(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.delivered)
        return [Bill(number=received.message.number)]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: each(bill)})):
            await eventually(lambda: _holds(bus, "BILLS", 3))
        async with running(subscribe(bus, "bills", {Order: each(bill)})):
            await bus.publish(Order(number=4))
            await eventually(lambda: _holds(bus, "BILLS", 4))
        bills = await read(bus, "BILLS")
    assert handled == [1, 1, 1, 1]
    assert sorted(one.message.number for one in bills) == [1, 2, 3, 4]
    assert all(one.causation_id == one.correlation_id == f"order-{one.message.number}" for one in bills)


async def test_each_message_of_a_batch_has_its_own_outcome(connect: Connect) -> None:
    seen: list[tuple[int, int]] = []

    async def handle(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        seen.extend((received.message.number, received.delivered) for received in batch)
        later = Retry("later", delay_s=0.05)
        outcomes: dict[int, Callable[[int], Outcome]] = {
            1: lambda _: Done(),
            2: lambda delivered: later if delivered < 3 else Done([Bill(number=2)]),
            3: lambda _: Dead("rejected", "no such country"),
        }
        return [outcomes[one.message.number](one.delivered) for one in batch]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: handle})):
            await eventually(lambda: _holds(bus, "BILLS", 1))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert sorted(seen) == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1)]
    dead = letter.message
    assert isinstance(dead, Undeliverable)
    assert (dead.stream, dead.sequence, dead.consumer) == ("ORDERS", 3, "bills")
    assert (dead.reason, dead.detail, dead.original_subject) == ("rejected", "no such country", "shop.order.v1.de")
    assert letter.causation_id == "order-3"


async def test_handler_that_leaves_out_an_outcome_fails_for_those_messages_alone(connect: Connect) -> None:
    async def handle(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        return [Done([Bill(number=one.message.number)]) for one in batch if one.message.number != 2]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: handle}, bounds=Bounds(linger_s=0.5))):
            await eventually(lambda: _holds(bus, "BILLS", 2))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        bills, (letter,) = await read(bus, "BILLS"), await read(bus, "DEAD")
    assert sorted(one.message.number for one in bills) == [1, 3]
    assert letter.message.detail == "TypeError: the handler returned 0 outcomes for 1 messages"


async def test_one_message_that_fails_among_many_is_dead_and_others_are_handled(connect: Connect) -> None:
    sizes: list[int] = []

    async def handle(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        sizes.append(len(batch))
        if any(one.message.number == 5 for one in batch):
            raise ZeroDivisionError
        return [Done([Bill(number=one.message.number)]) for one in batch]

    async with connect() as bus:
        await bus.publish_all(orders(*range(1, 9)))
        async with running(subscribe(bus, "bills", {Order: handle}, bounds=Bounds(linger_s=0.5))):
            await eventually(lambda: _holds(bus, "BILLS", 7))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
    assert (letter.message.sequence, letter.message.reason) == (5, "exhausted")


@pytest.mark.parametrize("by", ["message", "batch"])
@pytest.mark.parametrize("error", [Conflict("another was faster"), Unreadable("de", 1, "damaged"), ConfigError("off")])
async def test_an_error_that_may_pass_is_tried_again(connect: Connect, by: str, error: Exception) -> None:
    handled: list[int] = []

    async def one(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.delivered)
        if len(handled) == 1:
            raise error
        return [Bill(number=received.message.number)]

    async def several(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        return [Done(await one(received)) for received in batch]

    async with connect() as bus:
        await bus.publish_all(orders(1))
        async with running(subscribe(bus, "patient-bills", {Order: each(one) if by == "message" else several})):
            await eventually(lambda: _holds(bus, "BILLS", 1))
        assert await read(bus, "DEAD") == []
    assert handled == [1, 2]


@pytest.mark.parametrize("by", ["message", "batch"])
@pytest.mark.parametrize(
    "error", [Rejected("closed"), NotFound("no such country"), InvalidMessage("wrong"), DigestMismatch("other bytes")]
)
async def test_an_error_that_stays_makes_a_dead_letter_at_once(connect: Connect, by: str, error: Exception) -> None:
    handled: list[int] = []

    async def one(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.delivered)
        raise error

    async def several(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        return [Done(await one(received)) for received in batch]

    async with connect() as bus:
        await bus.publish_all(orders(1))
        async with running(subscribe(bus, "patient-bills", {Order: each(one) if by == "message" else several})):
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert handled == [1]
    assert (letter.message.reason, letter.message.detail) == ("rejected", str(error))


async def test_message_whose_handler_fails_costs_others_no_second_handling(connect: Connect) -> None:
    handled: list[int] = []

    async def bill(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.message.number)
        if received.message.number == 2:
            raise ZeroDivisionError
        return [Bill(number=received.message.number)]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: each(bill)}, bounds=Bounds(linger_s=0.5))):
            await eventually(lambda: _holds(bus, "BILLS", 2))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert handled == [1, 2, 3]
    assert (letter.message.sequence, letter.message.reason) == (2, "exhausted")


class Nameless(Bill, frozen=True, kw_only=True):
    """A bill whose id cannot be made."""

    @property
    def event_id(self) -> str:
        raise KeyError("number")


def _cancelled() -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "bad",
    [
        lambda: None,
        lambda: ["no message"],
        lambda: [Nameless(number=1)],
        _cancelled,
    ],
    ids=["nothing", "no message", "no id", "a cancelled call"],
)
async def test_an_impossible_answer_costs_its_own_message_alone(connect: Connect, bad: Callable[[], Any]) -> None:
    async def bill(received: Received[Order]) -> Sequence[Message]:
        return bad() if received.message.number == 1 else [Bill(number=received.message.number)]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: each(bill)})):
            await eventually(lambda: _holds(bus, "BILLS", 2))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert letter.message.sequence == 1


@pytest.mark.parametrize("outcome", [None, Retry("later", delay_s=float("nan")), Dead("No token!", "closed")])
async def test_an_impossible_outcome_costs_its_own_message_alone(connect: Connect, outcome: Any) -> None:
    async def handle(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        return [outcome if one.message.number == 1 else Done([Bill(number=one.message.number)]) for one in batch]

    async with connect() as bus:
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: handle})):
            await eventually(lambda: _holds(bus, "BILLS", 2))
            await eventually(lambda: _holds(bus, "DEAD", 1))
        (letter,) = await read(bus, "DEAD")
    assert letter.message.sequence == 1


async def test_group_of_errors_with_one_of_absence_is_no_failure_of_the_message(connect: Connect) -> None:
    handled: list[int] = []

    async def bill(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.delivered)
        if len(handled) == 1:
            raise ExceptionGroup("two calls", [Unavailable("the bank is away"), ValueError()])
        return [Bill(number=received.message.number)]

    async with connect() as bus:
        await bus.publish_all(orders(1))
        async with running(subscribe(bus, "bills", {Order: each(bill)})):
            await eventually(lambda: _holds(bus, "BILLS", 1))
        assert await read(bus, "DEAD") == []


async def test_one_record_that_the_stream_refuses_costs_no_other(connect: Connect) -> None:
    """nats-server refuses a whole atomic batch for one message's headers."""
    async with connect() as bus:
        records = [bus.seal(order) for order in orders(*range(1, 11))]
        large = Record(records[4].subject, {**records[4].headers, "note": "x" * 66_000}, records[4].body)
        sent = [*records[:4], large, *records[5:]]
        answers = await asyncio.gather(*map(bus.publish_record, sent), return_exceptions=True)
        stored = await numbers(bus, "ORDERS")
    assert {1, 2, 3, 4, 6, 7, 8, 9, 10} <= set(stored)
    if len(stored) < len(sent):  # the fake has no bound on headers
        assert [isinstance(answer, Rejected) for answer in answers] == [number == 4 for number in range(10)]


async def test_unreadable_messages_are_accounted_for_and_kept_whole(connect: Connect) -> None:
    accounts: list[Sequence[int]] = []
    handled: list[int] = []

    async def account(sequences: Sequence[int]) -> None:
        accounts.append(sequences)
        if len(accounts) == 1:
            raise Rejected("the account is closed")

    async def handle(received: Received[Order]) -> Sequence[Message]:
        handled.append(received.message.number)
        return []

    async with connect() as bus:
        await bus.publish_record(Record("shop.order.v1.de", {"Nats-Msg-Id": "bad"}, b"nonsense"))
        await bus.publish_record(Record("shop.order.v1.de", {"Nats-Msg-Id": "other"}, b'{"number": 9, "new": 1}'))
        await bus.publish_record(Record("shop.order.v1.fr", {"Nats-Msg-Id": "foreign"}, b'{"number": 9}'))
        async with running(
            subscribe(bus, "bills", {Order: each(handle)}, on_dead=account, bounds=Bounds(linger_s=0.5))
        ):
            await eventually(lambda: _holds(bus, "DEAD", 2))
            await eventually(lambda: true(handled))
        letters = {one.message.sequence: one.message for one in await read(bus, "DEAD")}
    assert accounts == [[1, 3]] * 2  # the second time after one that failed
    assert handled == [9]  # a member that the schema does not know is a newer writer's
    assert {number: one.reason for number, one in letters.items()} == {1: "invalid", 3: "invalid"}
    assert letters[1].headers["Nats-Msg-Id"] == "bad"


async def test_messages_that_a_killed_process_had_not_acked_are_delivered_again(connect: Connect) -> None:
    begun = asyncio.Event()
    again: list[tuple[int, int]] = []

    async def hang(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        begun.set()
        await asyncio.Event().wait()
        return []

    async def handle(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        again.extend((one.message.number, one.delivered) for one in batch)
        return [Done()] * len(batch)

    async with connect() as bus:
        await bus.publish_all(orders(1, 2))
        killed = asyncio.create_task(subscribe(bus, "patient-bills", {Order: hang}).run())
        await begun.wait()
        await end(killed)
        async with running(subscribe(bus, "patient-bills", {Order: handle})):
            await eventually(lambda: true(len(again) >= 2))
    assert [number for number, _ in sorted(again)] == [1, 2]
    assert max(delivered for _, delivered in again) > 1


async def test_a_running_handler_keeps_its_message(connect: Connect) -> None:
    seen: list[int] = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def slow(received: Received[Order]) -> Sequence[Message]:
        seen.append(received.delivered)
        await eventually(lambda: true(loop.time() - began > 2.5))  # more than twice the broker's patience
        return [Bill(number=received.message.number)]

    async with connect() as bus:
        await bus.publish(Order(number=1))
        async with running(subscribe(bus, "patient-bills", {Order: each(slow)})):
            await eventually(lambda: _holds(bus, "BILLS", 1))
    assert seen == [1]


async def test_no_message_dies_while_a_dependency_is_away(connect: Connect) -> None:
    attempts: list[int] = []

    async def bill(received: Received[Order]) -> Sequence[Message]:
        attempts.append(received.delivered)
        if len(attempts) < 3:
            raise Unavailable("the printer is away")
        return [Bill(number=1)]

    async with connect() as bus:
        await bus.publish(Order(number=1))
        async with running(subscribe(bus, "bills", {Order: each(bill)})):
            await eventually(lambda: _holds(bus, "BILLS", 1))
        assert (await bus.extent("DEAD")).last == 0
    assert attempts == [1, 2, 3]


async def test_a_worker_takes_the_jobs_of_its_depot_and_done_jobs_are_gone(connect: Connect) -> None:
    taken: list[tuple[str, int]] = []

    async def take(received: Received[Parcel]) -> Sequence[Message]:
        taken.append((received.message.depot, received.message.number))
        return []

    async def left() -> bool:
        extent = await bus.extent("PARCELS")
        return extent.first == extent.last == 3

    async with connect() as bus:
        parcels = [Parcel(number=1, depot="north"), Parcel(number=2, depot="north"), Parcel(number=1, depot="south")]
        await bus.publish_all(parcels)
        async with running(subscribe(bus, "depot-<depot>", {Parcel: each(take)}, parameters={"depot": "north"})):
            await eventually(left)
    assert taken == [("north", 1), ("north", 2)]


async def test_two_processes_share_the_messages_of_one_consumer(connect: Connect) -> None:
    taken: list[int] = []

    async def take(received: Received[Order]) -> Sequence[Message]:
        taken.append(received.message.number)
        return []

    async with connect() as one, connect() as two:
        first, second = (subscribe(bus, "bills", {Order: each(take)}, bounds=Bounds(batch=4)) for bus in (one, two))
        async with running(first, second):
            await one.publish_all(orders(*range(1, 41)))
            await eventually(lambda: true(len(taken) >= 40))
    assert sorted(taken) == [*range(1, 41)]


async def test_a_subscription_that_the_registry_does_not_declare_is_refused(connect: Connect) -> None:
    async def handle(received: Received[Any]) -> Sequence[Message]:
        return []

    async with connect() as bus:
        for name, handlers, parameters, reason in (
            ("letters", {Order: each(handle)}, {}, "the registry has no consumer letters"),
            ("bills", {}, {}, "consumer bills has no handler for shop.order.v1"),
            ("bills", {Order: each(handle), Bill: each(handle)}, {}, "handles shop.bill.v1, which the registry does"),
            ("bills", {Order: each(handle)}, {"depot": "north"}, "consumer bills takes no parameters, not depot"),
            ("depot-<depot>", {Parcel: each(handle)}, {}, "takes depot, not no parameters"),
        ):
            with pytest.raises(ConfigError, match=reason):
                subscribe(bus, name, handlers, parameters=parameters)
        with pytest.raises(ConfigError, match="the registry has no projection letters"):
            project(bus, "letters", kind=int, key_of=lambda _: "all", step=lambda _, __: 0)
        assert bus.opened == set()


class _Floor(msgspec.Struct):
    stream_seq: int = 0


class _Info(msgspec.Struct):
    """The broker's report on a consumer, or its error when there is no such consumer."""

    num_pending: int = 0
    num_ack_pending: int = 0
    ack_floor: _Floor = msgspec.field(default_factory=_Floor)
    error: dict[str, int | str] = {}


async def test_the_broker_reports_how_far_a_consumer_is(connect: Connect) -> None:
    held, release = asyncio.Event(), asyncio.Event()

    async def hold(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
        held.set()
        await release.wait()
        return [Done()] * len(batch)

    async def info() -> _Info:
        return await ask(bus.nc, "CONSUMER.INFO.ORDERS.bills", _Info)

    async def settled() -> bool:
        now = await info()
        return (now.num_pending, now.num_ack_pending, now.ack_floor.stream_seq) == (0, 0, 3)

    async with connect() as bus:
        assert (await info()).error["err_code"] == 10014
        await bus.publish_all(orders(1, 2, 3))
        async with running(subscribe(bus, "bills", {Order: hold})):
            await held.wait()
            assert (await info()).num_ack_pending == 3
            release.set()
            await eventually(settled)


async def test_consumer_keeps_no_place_until_it_is_needed(connect: Connect) -> None:
    taken: list[int] = []
    needed = asyncio.Event()
    unread = [Unreadable("reward_functions/in_force", 1, "of another version")]

    async def take(received: Received[Order]) -> Sequence[Message]:
        taken.append(received.message.number)
        return []

    async def place() -> bool:
        return not (await ask(bus.nc, "CONSUMER.INFO.ORDERS.bills", _Info)).error

    async def is_needed() -> bool:
        if unread:
            raise unread.pop()
        return needed.is_set()

    async with connect() as bus:
        await bus.publish_all(orders(1))
        async with running(subscribe(bus, "bills", {Order: each(take)})):  # as before it could be left out
            await eventually(lambda: true(taken == [1]))
        async with running(subscribe(bus, "bills", {Order: each(take)}, needed=is_needed)):
            await eventually(lambda: _not(place()))
            await bus.publish_all(orders(2))
            needed.set()
            await eventually(lambda: true(taken == [1, 1, 2]))


async def _not(value: Awaitable[bool]) -> bool:
    return not await value


# Projections


def counting(bus: Bus) -> Projection[list[int]]:
    """The numbers of orders by country; an order 13 cannot be folded."""

    def step(state: list[int] | None, received: Received[Message]) -> list[int]:
        order = received.message
        assert isinstance(order, Order)
        if order.number == 13:
            raise ZeroDivisionError
        return [*(state or []), order.number]

    return project(
        bus,
        "orders-by-country",
        kind=list[int],
        key_of=lambda received: received.message.country if isinstance(received.message, Order) else None,
        step=step,
    )


async def test_a_projection_folds_each_event_once_also_over_a_restart(connect: Connect) -> None:
    async with connect() as bus:
        await bus.publish_all([*orders(1, 2), *orders(3, country="fr"), *orders(13)])
        async with running(projection := counting(bus)):
            await projection.wait_for(4, 40)
            assert projection.states() == {"de": [1, 2], "fr": [3]}
        await bus.publish_record(bus.seal(Order(number=2)).with_message_id("again"))
        await bus.publish_all(orders(4))
        async with running(projection := counting(bus)):
            await projection.wait_for(6, 40)
            assert projection.states() == {"de": [1, 2, 4], "fr": [3]}
            assert projection.sequence("de") == 6
            await eventually(lambda: _stands_at(bus, 6))


async def test_a_projection_folds_events_to_which_publishers_gave_one_id(connect: Connect) -> None:
    async with connect() as bus:
        for order in orders(1, 2, 2):
            record = bus.seal(order)
            await bus.publish_record(msgspec.structs.replace(record, headers={**record.headers, "ce-id": "one"}))
        async with running(projection := counting(bus)):
            await projection.wait_for(2, 40)
            assert projection.states() == {"de": [1, 2]}


async def test_two_projections_of_one_name_fold_nothing_twice(connect: Connect) -> None:
    async with connect() as bus:
        first, second = counting(bus), counting(bus)
        async with running(first, second):
            for number in range(1, 31):
                if number != 13:
                    await bus.publish(Order(number=number))
            for projection in (first, second):
                await projection.wait_for(29, 40)
        async with running(third := counting(bus)):
            await third.wait_for(29, 40)
            assert third.state("de") == [number for number in range(1, 31) if number != 13]


async def test_projections_fold_together_each_from_its_own_place(connect: Connect) -> None:
    spec = CONTRACTS.projections["orders-by-country"]

    def numbered(state: list[int] | None, received: Received[Message]) -> list[int]:
        return [*(state or []), received.sequence]

    def other() -> Projection[list[int]]:
        return Projection(bus, replace(spec, name="sequences"), kind=list[int], key_of=lambda _: "all", step=numbered)

    async with connect() as bus:
        await bus.publish_all(orders(1, 2))
        async with running(alone := counting(bus)):
            await alone.wait_for(2, 40)
        first, second = counting(bus), other()
        async with running(Together(bus, first, second)):
            await bus.publish_all(orders(3))
            for projection in (first, second):
                await projection.wait_for(3, 40)
        assert (first.state("de"), second.state("all")) == ([1, 2, 3], [1, 2, 3])
        await Bucket(bus, spec.bucket, str).put("sequences.all", "no longer what it was")
        first, second = counting(bus), other()
        async with running(Together(bus, first, second)):
            await bus.publish_all(orders(4))
            await first.wait_for(4, 40)
            assert (first.state("de"), second.state("all")) == ([1, 2, 3, 4], None)


# Reading in order


async def test_a_stream_is_read_from_a_place_or_an_instant_to_an_end(connect: Connect) -> None:
    async with connect() as bus:
        await bus.publish_all([*orders(1, 2, 3), *orders(4, country="fr"), *orders(5)])

        async def between(start: Any, until: int | None = None, *subjects: str) -> list[int]:
            reader = OrderedReader(bus, "ORDERS", subjects, start=start)
            async with aclosing(reader.to_end(until)) as batches:
                return [bus.read(one)[0].sequence async for batch in batches for one in batch]

        assert await between(2) == [2, 3, 4, 5]
        assert await between(2, 3) == [2, 3]
        assert await between(1, None, "shop.order.v1.fr") == [4]
        assert await between(None) == [4, 5]
        assert await between(6) == []
        assert await between(datetime.now(UTC) - timedelta(hours=1)) == [1, 2, 3, 4, 5]
        assert await between(datetime.now(UTC) + timedelta(hours=1)) == []


async def test_reader_goes_on_with_new_messages_and_knows_when_it_is_at_the_end(connect: Connect) -> None:
    async with connect() as bus:
        reader = OrderedReader(bus, "ORDERS", ["shop.order.v1.de"])
        await reader.open()
        try:
            await bus.publish_all(orders(1, 2))
            await bus.publish_all(orders(3, country="fr"))
            sequences: list[int] = []
            while len(sequences) < 2:
                sequences += [one.metadata.sequence.stream for one in await reader.next(5)]
            assert sequences == [1, 2]
            assert reader.is_at_end(await reader.state())
            await bus.publish_all(orders(4))

            async def is_behind() -> bool:
                return not reader.is_at_end(await reader.state())

            await eventually(is_behind)  # a server counts what is pending a moment after it has stored a message
            assert [one.metadata.sequence.stream for one in await reader.next(5)] == [4]
            assert (reader.count, (await reader.state()).total) == (3, 3)
        finally:
            await reader.close()


async def _holds(bus: Bus, stream: str, count: int) -> bool:
    return (await bus.extent(stream)).last >= count


async def _stands_at(bus: Bus, sequence: int) -> bool:
    return [position.sequence for position in await positions(bus)] == [sequence]
