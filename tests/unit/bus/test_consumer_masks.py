"""No secret that a handler's error quotes reaches a dead letter or a log line, whatever the host's logging shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from ratchet.bus.consumer import BatchHandler, Dead, Outcome, each, subscribe
from ratchet.bus.failures import failure
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.core.errors import Rejected
from tests.support.running import running
from tests.support.shop import Order, Undeliverable, shop

SECRET = "sk-verysecret"


async def rejecting(received: Received[Order]) -> Sequence[Message]:
    raise Rejected(f"order {received.message.number} was paid with {SECRET}")


async def failing(received: Received[Order]) -> Sequence[Message]:
    raise KeyError(received.message.number, SECRET)


async def stumbling(received: Received[Order]) -> Sequence[Message]:
    raise ValueError(f"order {received.message.number} has a bad value {SECRET}")


async def giving_up(batch: Sequence[Received[Order]]) -> Sequence[Outcome]:
    return [Dead("refused", f"paid with {SECRET}") for _ in batch]


async def letter_of(bus: FakeBus, handler: BatchHandler) -> Undeliverable:
    """The dead letter of one order."""
    await bus.publish(Order(number=1))
    async with running(subscribe(bus, "bills", {Order: handler})):

        async def dead() -> bool:
            return bool(bus.published(Undeliverable))

        await eventually(dead)
    (letter,) = bus.published(Undeliverable)
    return letter


@pytest.mark.parametrize("handler", [each(rejecting), each(failing), giving_up])
async def test_a_secret_in_an_error_stays_in_the_process(handler: BatchHandler) -> None:
    bus = FakeBus(FakeBroker(shop(mask=lambda text: text.replace(SECRET, "***"))))
    structlog.reset_defaults()
    with capture_logs() as lines:
        letter = await letter_of(bus, handler)
    assert SECRET not in repr(letter)
    assert SECRET not in repr(lines)
    assert all("exc_info" not in line for line in lines)


@pytest.mark.parametrize("handler", [each(failing), each(stumbling)])
async def test_an_error_of_no_tree_of_ours_is_reported_by_its_type_and_place(handler: BatchHandler) -> None:
    structlog.reset_defaults()
    with capture_logs() as lines:
        letter = await letter_of(FakeBus(FakeBroker(shop())), handler)
    assert re.fullmatch(r"(KeyError|ValueError): raised at .*test_consumer_masks\.py:\d+ in \w+", letter.detail)
    assert SECRET not in repr((letter, lines))


def test_the_words_of_the_operating_system_stay_and_names_of_files_do_not(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=SECRET) as error:
        (tmp_path / SECRET).read_bytes()
    described = failure(error.value, str)
    assert (described["error"], described["reason"]) == ("FileNotFoundError", "No such file or directory")
    assert failure(ValueError(SECRET), str)["reason"] == "raised at an unknown place"
