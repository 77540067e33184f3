"""The budget of a day is never exceeded, by however many processes and however they end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.state import JUDGE_SPEND
from ratchet.core.judging.spending import DailyLedger
from ratchet.core.rules.call_budget import NOTHING, ONE_CALL, Amounts, BudgetSpent
from tests.support.fake_bus import fake_broker, fake_bus

DAY = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
LIMIT = Amounts(calls=10, tokens=float("inf"), usd=1.0)
MOST = Amounts(calls=1, usd=0.3)


def ledger_on(bus: FakeBus) -> DailyLedger:
    return DailyLedger(Bucket(bus, JUDGE_SPEND, Amounts), "support", LIMIT, lambda: DAY)


async def test_call_is_reserved_before_it_is_made_and_gives_back_the_rest() -> None:
    ledger = ledger_on(fake_bus())
    settle = await ledger.reserve(MOST)
    assert await ledger.charged() == MOST
    await settle(Amounts(calls=1, usd=0.1))
    assert await ledger.charged() == Amounts(calls=1, usd=pytest.approx(0.1))


async def test_call_that_might_exceed_the_budget_is_not_made() -> None:
    ledger = ledger_on(fake_bus())
    for _ in range(3):
        await ledger.reserve(MOST)
    with pytest.raises(BudgetSpent):
        await ledger.reserve(MOST)


async def test_answer_that_came_after_midnight_is_settled_on_its_own_day() -> None:
    bus, now = fake_bus(), [DAY]
    ledger = DailyLedger(Bucket(bus, JUDGE_SPEND, Amounts), "support", LIMIT, lambda: now[0])
    settle = await ledger.reserve(MOST)
    now[0] = DAY + timedelta(minutes=2)
    await ledger.reserve(MOST)
    await settle(NOTHING)
    assert await ledger.charged() == MOST
    assert (await ledger_on(bus).charged()).usd == pytest.approx(0.0)


@given(
    st.lists(
        st.tuples(st.sampled_from(["used", "killed before", "killed after"]), st.floats(0, 0.3)),
        min_size=1,
        max_size=25,
    )
)
def test_what_was_paid_never_exceeds_the_budget_over_kills(calls: list[tuple[str, float]]) -> None:
    """Each call is one of a process of its own that may be killed before or after it was made."""

    async def paid() -> Amounts:
        broker, total = fake_broker(), NOTHING

        async def call(fate: str, usd: float) -> Amounts:
            try:
                settle = await ledger_on(FakeBus(broker)).reserve(MOST)
            except BudgetSpent:
                return NOTHING
            if fate == "killed before":
                return NOTHING
            used = ONE_CALL + Amounts(usd=usd)
            if fate == "used":
                await settle(used)
            return used

        for made in await asyncio.gather(*(call(*one) for one in calls)):
            total += made
        return total

    total = asyncio.run(paid())
    assert total.calls <= LIMIT.calls
    assert total.usd <= LIMIT.usd + 1e-9
