"""A service that takes too long is asked after growing pauses; one that answers, or is away, at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from ratchet.console.http_services import HttpServices
from ratchet.core.errors import Unavailable
from ratchet.core.service.health_ports import FIRST_S, LONGEST_S, Pace
from ratchet.core.service.http_client import TIMEOUT

SLOW = Unavailable("the deployer does not answer", code=TIMEOUT)


class Service:
    """It answers, or raises what it was given; and counts how often it was asked."""

    def __init__(self, error: Unavailable | None) -> None:
        self.error = error
        self.asked = 0

    async def answer(self) -> str:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return "here"


async def reason_of_gateway(others: HttpServices) -> str:
    """Why the gateway is away."""
    (gateway,) = (one for one in await others.states() if one.name == "gateway")
    assert gateway.state == "away"
    return gateway.reason or ""


async def asked_at(service: Service, pace: Pace, clock: list[float], until_s: int) -> list[int]:
    """The seconds at which a page that asks every second reached the service."""
    reached: list[int] = []
    for second in range(until_s):
        clock[0], before = float(second), service.asked
        with suppress(Unavailable):
            await pace.of(service.answer)
        if service.asked > before:
            reached.append(second)
    return reached


async def test_pauses_double_up_to_the_longest_and_end_with_an_answer() -> None:
    clock, service = [0.0], Service(SLOW)
    pace = Pace(lambda: clock[0])
    assert await asked_at(service, pace, clock, 125) == [0, 2, 6, 14, 30, 60, 90, 120]
    with pytest.raises(Unavailable, match=r"the deployer does not answer; it is asked again in 26 s"):
        await pace.of(service.answer)
    service.error = None
    clock[0] = 120 + LONGEST_S
    assert await pace.of(service.answer) == "here"
    service.error = SLOW
    with suppress(Unavailable):
        await pace.of(service.answer)
    service.error = None
    clock[0] += FIRST_S
    assert await pace.of(service.answer) == "here", "the first pause again"


async def test_a_service_that_is_away_is_asked_each_time() -> None:
    clock, service = [0.0], Service(Unavailable("no connection"))
    assert await asked_at(service, Pace(lambda: clock[0]), clock, 5) == [0, 1, 2, 3, 4]


async def test_the_health_of_a_hung_service_is_asked_once_within_a_pause() -> None:
    connections = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.read()
        writer.close()

    clock = [0.0]
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HttpServices({"gateway": url}, url, url, None, answer_s=0.5, monotonic=lambda: clock[0]) as others:
            reasons: list[str] = []
            for _ in range(3):
                reasons.append(await reason_of_gateway(others))
                for ask in (others.training, others.rollouts):
                    with suppress(Unavailable):
                        await ask()
            assert ["asked again in 2 s" in reason for reason in reasons] == [False, True, True]
            assert connections <= 4, "one of health, two of the coordinator, one of the deployer"
            clock[0] = FIRST_S
            assert "asked again" not in await reason_of_gateway(others)
