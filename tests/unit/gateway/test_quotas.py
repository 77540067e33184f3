"""What keys use: refused beyond their limits, shared by several gateways, and known after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest
from structlog.testing import capture_logs

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBroker, FakeClock, connect, eventually
from ratchet.core.contract.gateway_notes import UseNote
from ratchet.core.contract.state import KEY_USAGE, KeyLimits, KeyUsage
from ratchet.core.rules.access import ANYONE, Caller, KeyScope
from ratchet.core.service.asgi import Answer, EventStream, Request
from ratchet.core.service.problems import HttpError
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.http_api import Route, RouteHandler, call
from ratchet.gateway.quotas import Quotas
from tests.support.fake_bus import fake_broker
from tests.support.running import running

KEY = "key_0000000000"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def to(broker: FakeBroker) -> Callable[[], Awaitable[Bus]]:
    async def connected() -> Bus:
        return await connect(broker)

    return connected


def quotas(clock: FakeClock, broker: FakeBroker | None = None) -> Quotas:
    return Quotas(to(broker or fake_broker()), clock, clock.monotonic, PeerUpdates())


def holder(key_id: str = "key_0000000000", **limits: float) -> Caller:
    return Caller(key_id, "agents", frozenset({"infer:*"}), KeyLimits(**limits))  # type: ignore[arg-type]


def refusal(used: Quotas, caller: Caller) -> tuple[int, str | None, dict[bytes, bytes]] | None:
    try:
        used.require(caller)
    except HttpError as error:
        return error.status, error.code, dict(error.headers)
    return None


def test_answer_larger_than_the_rest_makes_key_wait_until_it_is_paid_off() -> None:
    clock, caller = FakeClock(NOON), holder(tokens_per_minute=60)
    used = quotas(clock)
    used.require(caller)
    used.account(KEY, 90, 0.0)
    assert refusal(used, caller) == (429, "rate_limit_exceeded", {b"retry-after": b"31"})
    clock.advance(31)
    assert refusal(used, caller) is None
    assert refusal(used, holder("key_1111111111", tokens_per_minute=60)) is None


@pytest.mark.parametrize(("has_prices", "lines"), [(False, 1), (True, 0)])
def test_a_limit_on_money_without_a_price_is_logged_once(has_prices: bool, lines: int) -> None:
    used = Quotas(to(fake_broker()), FakeClock(NOON), FakeClock(NOON).monotonic, PeerUpdates(), has_prices=has_prices)
    with capture_logs() as logs:
        for _ in range(3):
            used.require(holder(usd_per_day=2.0))
            used.require(holder(tokens_per_minute=60))
    assert [line["key_id"] for line in logs] == [KEY] * lines


def test_money_is_that_of_a_day_in_utc() -> None:
    clock, caller = FakeClock(NOON), holder(usd_per_day=2.0)
    used = quotas(clock)
    used.account(KEY, 10, 1.5)
    assert refusal(used, caller) is None
    used.account(KEY, 10, 0.5)
    assert refusal(used, caller) == (429, "insufficient_quota", {b"retry-after": b"43200"})
    clock.advance(43_200)
    assert refusal(used, caller) is None


def test_a_key_without_limits_and_a_caller_without_a_key_are_never_refused() -> None:
    used = quotas(FakeClock(NOON))
    used.account(KEY, 10**9, 10.0**9)
    for caller in (holder(), ANYONE):
        used.require(caller)
    assert used.spent_today(KEY) == 10.0**9


async def test_gateways_add_up_what_each_has_counted_also_after_a_restart() -> None:
    clock, broker, caller = FakeClock(NOON), fake_broker(), holder(usd_per_day=2.0)
    first, second = quotas(clock, broker), quotas(clock, broker)
    async with running(first, second):
        first.account(KEY, 10, 1.5)
        second.account(KEY, 10, 0.5)
        await eventually(lambda: _is_refused(first, caller))
        await eventually(lambda: _is_refused(second, caller))
    later = quotas(clock, broker)
    async with running(later):
        await eventually(lambda: _is_refused(later, caller))
        stored = (await Bucket(await connect(broker), KEY_USAGE, KeyUsage).items()).values()
        assert sorted((one.value.calls, one.value.tokens, one.value.usd) for one in stored) == [
            (1, 10, 0.5),
            (1, 10, 1.5),
        ]


async def _is_refused(used: Quotas, caller: Caller) -> bool:
    return refusal(used, caller) is not None


async def test_what_was_counted_last_is_written_at_a_stop() -> None:
    clock, broker, caller = FakeClock(NOON), fake_broker(), holder(usd_per_day=2.0)
    used, bucket = quotas(clock, broker), Bucket(await connect(broker), KEY_USAGE, KeyUsage)
    await bucket.put("key_0000000000.a", KeyUsage(key_id="key_0000000000", day="2026-03-01", usd=2.0))
    async with running(used):
        await eventually(lambda: _is_refused(used, caller))
        used.account(KEY, 10, 1.5)
    assert sorted(one.value.usd for one in (await bucket.items()).values()) == [1.5, 2.0]


async def test_an_unreadable_value_hides_no_other() -> None:
    clock, broker, caller = FakeClock(NOON), fake_broker(), holder(usd_per_day=2.0)
    bus = await connect(broker)
    await Bucket(bus, KEY_USAGE, msgspec.Raw).put("key_0000000000.a", msgspec.Raw(b"{}"))
    value = KeyUsage(key_id="key_0000000000", day="2026-03-01", usd=2.0)
    await Bucket(bus, KEY_USAGE, KeyUsage).put("key_0000000000.b", value)
    used = quotas(clock, broker)
    async with running(used):
        await eventually(lambda: _is_refused(used, caller))
        assert refusal(used, caller) == (429, "insufficient_quota", {b"retry-after": b"43200"})
        assert used.spent_today(KEY) == 2.0


async def test_calls_in_flight_count_by_the_length_of_their_prompts() -> None:
    caller, used, over = holder(tokens_per_minute=60), quotas(FakeClock(NOON)), asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: a"
        await over.wait()

    async def streams(_: Request, __: str | None) -> Answer:
        return EventStream(events())

    async def fails(_: Request, __: str | None) -> Answer:
        raise HttpError(502, "away")

    async def ask(handler: RouteHandler) -> Answer:
        request = Request("POST", "/v1/chat/completions", {}, b"x" * 160, caller=caller)
        return await call(Route(KeyScope.INFER, handler), used, None, request)

    with pytest.raises(HttpError, match="away"):
        await ask(fails)
    first, second = await ask(streams), await ask(streams)
    with pytest.raises(HttpError, match="has used up its 60 tokens per minute"):
        await ask(streams)
    over.set()
    for stream in (first, second):
        assert isinstance(stream, EventStream)
        assert [event async for event in stream.events] == [b"data: a"]
    assert refusal(used, caller) is None


def test_image_in_flight_reserves_no_more_than_a_long_text() -> None:
    used, caller = quotas(FakeClock(NOON)), holder(tokens_per_minute=10_000)
    assert used.reserve(caller, 30_000_000) is not None
    assert refusal(used, caller) is None


def test_tokens_that_a_key_used_at_another_gateway_count_here() -> None:
    clock, caller = FakeClock(NOON), holder(tokens_per_minute=60)
    used = quotas(clock)
    used.learn(UseNote(key_id=KEY, tokens=100))
    used.require(caller)
    used.learn(UseNote(key_id=KEY, tokens=60))
    refused = refusal(used, caller)
    assert refused is not None
    assert refused[:2] == (429, "rate_limit_exceeded")
