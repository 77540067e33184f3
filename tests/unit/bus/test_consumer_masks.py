"""No secret that a handler's error quotes reaches a dead letter or a log line, whatever the host's logging shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog
from structlog.testing import capture_logs

from ratchet.bus.consumer import BatchHandler, Dead, Outcome, each
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.errors import Rejected
from tests.support.running import running
from tests.support.shop import Order, Undeliverable, shop

SECRET = "sk-verysecret"


async def rejecting(received: Received[Order]) -> Sequence[Message]:
    raise Rejected(f"order {received.message.number} was paid with {SECRET}")


async def failing(received: Received[Order]) -> Sequence[Message]:
    raise KeyError(received.message.number, SECRET)


async def giving_up(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
    return [Dead("refused", f"paid with {SECRET}") for _ in batch]


@pytest.mark.parametrize("handler", [each(rejecting), each(failing), giving_up])
async def test_a_secret_in_an_error_stays_in_the_process(handler: BatchHandler) -> None:
    bus = FakeBus(FakeBroker(shop(mask=lambda text: text.replace(SECRET, "***"))))
    structlog.reset_defaults()
    with capture_logs() as lines:
        await bus.publish(Order(number=1))
        async with running(bus.subscribe("bills", {Order: handler})):

            async def dead() -> bool:
                return bool(bus.published(Undeliverable))

            await eventually(dead)
    (letter,) = bus.published(Undeliverable)
    assert SECRET not in repr(letter)
    assert SECRET not in repr(lines)
    assert all("exc_info" not in line for line in lines)
