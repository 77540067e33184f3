"""Who may call and how often, before the gateway reads a body; callers cost bounded memory."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from ratchet.gateway.guard import Guard, RateLimit, address_of
from ratchet.service.asgi import Receive, Response, Scope, Send, send_response


async def inside(_: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send_response(send, Response(200, b"{}"))


class Caller:
    """Sends requests, and counts how often the application read a body."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.read = 0
        self.answers: list[Any] = []

    async def call(self, key: bytes = b"", address: tuple[str, int] | None = ("10.0.0.1", 5000)) -> int:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"authorization", key)], "client": address}
        self.answers.clear()
        await self.guard(scope, self.receive, self.send)
        return self.answers[0]["status"]

    async def receive(self) -> dict[str, Any]:
        self.read += 1
        return {"type": "http.request"}

    async def send(self, event: Any) -> None:
        self.answers.append(event)

    @property
    def code(self) -> str:
        return msgspec.json.decode(self.answers[1]["body"])["error"]["code"]


@pytest.mark.parametrize("key", [b"", b"Bearer ", b"Bearer bad", b"Bearer goo", b"Bearer g\xc3\xb6od", b"\xff"])
async def test_a_request_without_a_known_key_gets_401_and_its_body_is_not_read(key: bytes) -> None:
    caller = Caller(Guard(inside, frozenset({"good", "other"}), None))
    assert await caller.call(key) == 401
    assert (caller.code, caller.read) == ("invalid_api_key", 0)
    assert await caller.call(b"Bearer good") == 200
    assert caller.read == 1


async def test_without_keys_every_address_has_a_limit_of_its_own() -> None:
    caller = Caller(Guard(inside, frozenset(), RateLimit(2, lambda: 0.0)))
    first = [await caller.call(address=("10.0.0.1", port)) for port in range(3)]
    assert first == [200, 200, 429]
    assert (caller.code, dict(caller.answers[0]["headers"])[b"retry-after"]) == ("rate_limit_exceeded", b"30")
    assert caller.read == 2
    assert await caller.call(b"Bearer anything", ("10.0.0.1", 5000)) == 429
    assert [await caller.call(address=("10.0.0.2", 5000)), await caller.call(address=None)] == [200, 200]


async def test_with_keys_a_limit_belongs_to_the_key_from_every_address() -> None:
    caller = Caller(Guard(inside, frozenset({"busy", "calm"}), RateLimit(1, lambda: 0.0)))
    calls = [await caller.call(b"Bearer busy", (address, 1)) for address in ("10.0.0.1", "10.0.0.2")]
    assert calls == [200, 429]
    assert await caller.call(b"Bearer calm", ("10.0.0.1", 1)) == 200


async def test_a_wrong_key_uses_up_no_limit() -> None:
    caller = Caller(Guard(inside, frozenset({"good"}), RateLimit(1, lambda: 0.0)))
    assert [await caller.call(b"Bearer bad"), await caller.call(b"Bearer good")] == [401, 200]


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.9", b"198.51.100.1", "203.0.113.9"),
        ("127.0.0.1", b"198.51.100.1", "127.0.0.1"),
        ("10.0.0.1", b"198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", b"1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", b"198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", b"", "10.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_may_name_the_caller(peer: str, forwarded: bytes, address: str) -> None:
    scope = {"client": (peer, 1), "headers": [(b"x-forwarded-for", forwarded)]}
    assert address_of(scope, [ip_network("10.0.0.0/8")]) == address


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_may_spend_a_minute_at_once_and_then_waits_for_the_next_token() -> None:
    clock = Clock()
    limit = RateLimit(4, clock)
    assert [limit.wait_s("a") for _ in range(4)] == [0.0] * 4
    assert limit.wait_s("a") == pytest.approx(15.0)
    clock.now += 14.0
    assert limit.wait_s("a") == pytest.approx(1.0)
    clock.now += 1.5
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a") > 0


def test_callers_do_not_share_a_bucket_and_a_quiet_minute_fills_it_only_once() -> None:
    clock = Clock()
    limit = RateLimit(1, clock)
    assert (limit.wait_s("a"), limit.wait_s("b")) == (0.0, 0.0)
    clock.now += 3600.0
    assert limit.wait_s("a") == 0.0
    assert limit.wait_s("a") == pytest.approx(60.0)


def test_the_limit_remembers_only_so_many_callers() -> None:
    limit = RateLimit(1, Clock(), callers=2)
    for caller in ("a", "b", "a", "c"):
        limit.wait_s(caller)
    assert len(limit) == 2
    assert limit.wait_s("a") > 0
    assert limit.wait_s("b") == 0.0
