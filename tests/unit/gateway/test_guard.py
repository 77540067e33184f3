"""How often a caller may call, before the gateway reads a body; callers cost bounded memory."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.gateway_notes import UseNote
from ratchet.core.contract.state import KeyLimits
from ratchet.core.rules.access import ANYONE, Caller
from ratchet.core.service.asgi import CALLER, Receive, Response, Scope, Send, send_response
from ratchet.gateway.guard import Guard, RateLimit, address_of


async def inside(_: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send_response(send, Response(200, b"{}"))


class Sender:
    """Sends requests through a guard, and counts how often the application read a body."""

    def __init__(self, per_minute: int = 0) -> None:
        self.limit = RateLimit(lambda: 0.0)
        self.used: list[str] = []
        """Keys, as the guard reports their requests to other gateways."""
        self.guard = Guard(inside, self.limit, per_minute, used=self.used.append)
        self.read = 0
        self.answers: list[Any] = []

    async def send_by(self, caller: Caller, address: tuple[str, int] | None = ("10.0.0.1", 5000)) -> int:
        scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": address, CALLER: caller}
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


def holder(key_id: str, per_minute: int | None = None) -> Caller:
    return Caller(key_id, "agents", frozenset({"infer:*"}), KeyLimits(requests_per_minute=per_minute))


async def test_without_keys_every_address_has_a_limit_of_its_own() -> None:
    sender = Sender(2)
    first = [await sender.send_by(ANYONE, ("10.0.0.1", port)) for port in range(3)]
    assert first == [200, 200, 429]
    assert (sender.code, dict(sender.answers[0]["headers"])[b"retry-after"]) == ("rate_limit_exceeded", b"30")
    assert sender.read == 2
    assert [await sender.send_by(ANYONE, ("10.0.0.2", 5000)), await sender.send_by(ANYONE, None)] == [200, 200]


async def test_with_keys_a_limit_belongs_to_the_key_from_every_address() -> None:
    sender = Sender(1)
    assert [await sender.send_by(holder("key_a"), (address, 1)) for address in ("10.0.0.1", "10.0.0.2")] == [200, 429]
    assert await sender.send_by(holder("key_b"), ("10.0.0.1", 1)) == 200


async def test_requests_of_a_key_at_other_gateways_count_too() -> None:
    one, other = Sender(4), Sender(4)
    assert [await sender.send_by(holder("key_a")) for sender in (one, other, one)] == [200, 200, 200]
    assert (one.used, other.used) == (["key_a", "key_a"], ["key_a"])
    other.limit.learn(UseNote(key_id="key_a", requests=2))
    assert [await other.send_by(holder("key_a")) for _ in range(2)] == [200, 429]
    assert other.used == ["key_a", "key_a"], "a refused request counts nowhere"
    other.limit.learn(UseNote(key_id="key_b", requests=3))
    assert await other.send_by(holder("key_b")) == 200


async def test_only_keys_with_a_limit_are_reported() -> None:
    limited, unlimited = Sender(4), Sender()
    assert [await limited.send_by(ANYONE), await unlimited.send_by(holder("key_a"))] == [200, 200]
    assert (limited.used, unlimited.used) == ([], [])


@pytest.mark.parametrize("per_minute", [0, 1, 5])
async def test_the_limit_of_a_key_counts_instead_of_the_settings(per_minute: int) -> None:
    sender = Sender(per_minute)
    assert [await sender.send_by(holder("key_a", 3)) for _ in range(4)] == [200, 200, 200, 429]


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


def test_caller_may_spend_a_minute_at_once_and_then_waits_for_next_token() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert [limit.wait_s("a", 4) for _ in range(4)] == [0.0] * 4
    assert limit.wait_s("a", 4) == pytest.approx(15.0)
    clock.now += 14.0
    assert limit.wait_s("a", 4) == pytest.approx(1.0)
    clock.now += 1.5
    assert limit.wait_s("a", 4) == 0.0
    assert limit.wait_s("a", 4) > 0


def test_callers_do_not_share_a_bucket_and_quiet_minute_fills_it_only_once() -> None:
    clock = Clock()
    limit = RateLimit(clock)
    assert (limit.wait_s("a", 1), limit.wait_s("b", 1)) == (0.0, 0.0)
    clock.now += 3600.0
    assert limit.wait_s("a", 1) == 0.0
    assert limit.wait_s("a", 1) == pytest.approx(60.0)


def test_the_limit_remembers_only_so_many_callers() -> None:
    limit = RateLimit(Clock(), callers=2)
    for caller in ("a", "b", "a", "c"):
        limit.wait_s(caller, 1)
    assert len(limit) == 2
    assert limit.wait_s("a", 1) > 0
    assert limit.wait_s("b", 1) == 0.0
