"""Kept responses in the broker: found by any gateway that has the id, sealed for everybody else."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus, eventually
from ratchet.core.contract.state import RESPONSES, SealedResponse
from ratchet.core.errors import BusUnavailable, Unreadable
from ratchet.dialects.responses.state import STATE_BYTES, ResponseState, encode_state
from ratchet.gateway.kv_responses import Responses, entry_key, sealed, unsealed
from tests.support.fake_bus import fake_bus

SECRET = "my password is tulip"


def state(state_id: str = "resp_0", text: str = SECRET) -> ResponseState:
    return ResponseState(state_id, "someone", [{"role": "user", "content": text}], 1, {"id": state_id})


def responses(bus: FakeBus) -> Responses:
    return Responses(lambda: Bucket(bus, RESPONSES, SealedResponse), retry_s=0.01)


async def test_another_gateway_finds_what_one_has_kept_and_deleted() -> None:
    bus = fake_bus()
    first, second = responses(bus), responses(bus)
    assert await second.get_state("resp_0") is None
    assert await first.put_state(state())
    assert await second.get_state("resp_0") == state()
    await second.delete_state("resp_0")
    assert await first.get_state("resp_0") is None
    await first.delete_state("resp_0")


async def test_the_broker_sees_neither_text_nor_id() -> None:
    bus = fake_bus()
    await responses(bus).put_state(state())
    entry = await Bucket(bus, RESPONSES, SealedResponse).get(entry_key("resp_0"))
    assert entry is not None
    assert "resp_0" not in entry_key("resp_0")
    assert "tulip" not in entry.value.sealed
    with pytest.raises(Unreadable):
        unsealed("resp_1", entry.value)


async def test_the_same_state_is_sealed_anew_each_time() -> None:
    assert sealed("resp_0", b"x") != sealed("resp_0", b"x")


@pytest.mark.parametrize("value", ["x", "AAAA", "????", "A" * 100])
async def test_a_damaged_value_is_unreadable(value: str) -> None:
    with pytest.raises(Unreadable):
        unsealed("resp_0", SealedResponse(sealed=value))


async def test_an_answer_stands_when_its_state_is_too_large_to_be_kept() -> None:
    assert not await responses(fake_bus()).put_state(state(text="x" * STATE_BYTES))


async def test_gateway_without_a_broker_continues_what_it_kept_and_stores_later() -> None:
    bus = fake_bus()
    kept, other = responses(bus), responses(bus)
    bus.broker.go_away()
    assert await kept.put_state(state())
    assert await kept.get_state("resp_0") == state()
    with pytest.raises(BusUnavailable):
        await other.get_state("resp_0")
    bus.broker.come_back()
    assert await eventually(lambda: other.get_state("resp_0")) == state()
    await kept.close()


async def test_without_a_connection_other_responses_are_not_known() -> None:
    kept = Responses(lambda: None)
    assert await kept.put_state(state())
    with pytest.raises(BusUnavailable, match="whole input"):
        await kept.get_state("resp_1")
    await kept.close()


async def test_what_the_broker_does_not_store_is_held_within_bound_newest_first() -> None:
    size = len(sealed("resp_0", encode_state(state("resp_0", "x")) or b"").sealed)
    kept = Responses(lambda: None, unstored_bytes=2 * size + 16)
    for number in range(3):
        await kept.put_state(state(f"resp_{number}", "x"))
    with pytest.raises(BusUnavailable):
        await kept.get_state("resp_0")
    assert [await kept.get_state(f"resp_{number}") is not None for number in (1, 2)] == [True, True]
    await kept.close()


class FrozenBucket:
    """A bucket whose broker takes requests and answers none until it may."""

    def __init__(self, bucket: Bucket[SealedResponse]) -> None:
        self._bucket = bucket
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def put(self, key: str, value: SealedResponse) -> int:
        self.asked += 1
        await self.may_answer.wait()
        return await self._bucket.put(key, value)


async def test_no_answer_waits_for_a_frozen_broker_but_the_first_one_briefly() -> None:
    bus = fake_bus()
    frozen = FrozenBucket(Bucket(bus, RESPONSES, SealedResponse))
    kept = Responses(lambda: cast("Bucket[SealedResponse]", frozen), wait_s=0.001)
    for number in range(20):
        assert await kept.put_state(state(f"resp_{number}"))
    assert frozen.asked == 1  # the others have not even begun: nothing has waited for them
    assert await kept.get_state("resp_19") == state("resp_19")
    frozen.may_answer.set()
    assert await eventually(lambda: responses(bus).get_state("resp_19")) == state("resp_19")
    await kept.close()


async def test_a_response_that_is_deleted_before_it_is_stored_stays_deleted() -> None:
    bus = fake_bus()
    kept = responses(bus)
    bus.broker.go_away()
    await kept.put_state(state())
    with pytest.raises(BusUnavailable):
        await kept.delete_state("resp_0")
    assert await kept.get_state("resp_0") == state()
    bus.broker.come_back()
    await kept.delete_state("resp_0")
    await kept.put_state(state("resp_1"))
    assert await kept.get_state("resp_0") is None
    await kept.close()
