"""What a call costs, by the prices that an operator sets, and what metrics count of a turn."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from prometheus_client import REGISTRY
from pydantic import ValidationError

from ratchet.core.contract.turn import Usage
from ratchet.core.service.engine_list import PriceSettings
from ratchet.gateway.domain.prices import FREE, Price, Prices, spent_tokens
from ratchet.gateway.recorder import count_turn
from ratchet.gateway.recorder_process import Counted
from ratchet.gateway.settings import Settings, UpstreamSettings
from tests.unit.gateway.test_turns import HEADER

counts = st.integers(0, 10_000_000)
dollars = st.floats(0, 1000)


def upstream(name: str, **prices: PriceSettings) -> UpstreamSettings:
    return UpstreamSettings(name=name, base_url="http://127.0.0.1:1/v1", models={"*": "*"}, prices=prices)


def test_tokens_that_the_server_had_in_its_cache_have_their_own_price() -> None:
    usage = Usage(prompt=1_000_000, completion=500_000, cached=400_000, reasoning=100_000)

    assert Price(2.0, 8.0, 0.5).cost_of(usage) == pytest.approx(0.6 * 2 + 0.4 * 0.5 + 0.5 * 8)
    assert Price(2.0, 8.0).cost_of(usage) == pytest.approx(2 + 0.5 * 8)


def test_the_prompt_of_several_answers_is_paid_for_once() -> None:
    usage = Usage(prompt=1_000_000, completion=500_000)

    assert Price(2.0, 8.0).cost_of(usage, with_prompt=False) == pytest.approx(4.0)


@given(counts, counts, st.none() | counts, dollars, dollars, st.none() | dollars)
def test_no_usage_costs_less_than_nothing(
    prompt: int, completion: int, cached: int | None, price: float, answer: float, reused: float | None
) -> None:
    """Also one whose cached tokens are more than its prompt, as some servers report."""
    usage = Usage(prompt=prompt, completion=completion, cached=cached)
    assert Price(price, answer, reused).cost_of(usage) >= 0
    assert FREE.cost_of(usage) == 0


def test_model_without_a_price_has_none_and_a_star_stands_for_every_other() -> None:
    settings = Settings(
        engine_price=PriceSettings(prompt=1, completion=2),
        upstreams=[
            upstream(
                "one", small=PriceSettings(prompt=0, completion=0), **{"*": PriceSettings(prompt=9, completion=9)}
            ),
            upstream("two", big=PriceSettings(prompt=3, completion=4, cached_prompt=0.3)),
        ],
    )
    prices = settings.prices

    assert prices.price_of("engine_local", "support@1") == Price(1, 2)
    assert prices.price_of("one", "small") == FREE
    assert prices.price_of("one", "other") == Price(9, 9)
    assert prices.price_of("two", "big") == Price(3, 4, 0.3)
    assert prices.price_of("two", "other") is None
    assert prices.price_of("three", "big") is None
    assert Prices().price_of("engine_local", "support@1") is None


WRONG = [
    {"prompt": -1, "completion": 1},
    {"prompt": 1},
    {"prompt": "inf", "completion": 1},
    {"prompt": "nan", "completion": 1},
    {"prompt": 1, "completion": 1, "cached": 1},
]


@pytest.mark.parametrize("price", WRONG)
def test_a_price_that_cannot_be_one_is_refused(price: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PriceSettings.model_validate(price)


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"ratchet_gateway_{name}_total", labels) or 0.0


def test_a_turn_is_counted_by_reason_policy_and_key() -> None:
    yes = {"role": "support", "trainable": "yes", "reason": ""}
    no = {"role": "support", "trainable": "no", "reason": "top_p"}
    spent = {"policy": "support@1", "key": "k-prices"}
    before = sample("captured_turns", **yes), sample("captured_turns", **no)

    count_turn(HEADER, Counted(None, "k-prices", Usage(prompt=7, completion=3, cached=2), 0.25))
    count_turn(HEADER, Counted("top_p", "k-prices", None, None))

    assert (sample("captured_turns", **yes), sample("captured_turns", **no)) == (before[0] + 1, before[1] + 1)
    kinds = ("prompt", "cached", "completion", "reasoning")
    assert [sample("tokens", **spent, kind=kind) for kind in kinds] == [7, 2, 3, 0]
    assert sample("cost_usd", **spent) == 0.25


@pytest.mark.parametrize(
    ("datas", "streamed", "spent"),
    [
        ([b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}'], False, (7, 3)),
        ([b'{"usage": {"input_tokens": 7, "output_tokens": 3}}'], False, (7, 3)),
        ([b'{"a": 1}'] * 9 + [b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'], True, (7, 3)),
        ([b'{"message": {"usage": {"input_tokens": 7}}}', b"{}", b'{"usage": {"output_tokens": 3}}'], True, (7, 3)),
        ([b"{}", b'{"response": {"usage": {"input_tokens": 7, "output_tokens": 3}}}'], True, (7, 3)),
        ([b'{"usage": null}'] * 9, True, (10, 9)),
        ([b'{"usage": {"prompt_tokens": "many"}}'], False, (10, 9)),
        ([b'{"usage": {"prompt_tokens": 4611686018427387904, "completion_tokens": -1}}'], False, (10, 18)),
        ([b"x" * 8], False, (10, 2)),
    ],
)
def test_what_a_limit_counts_is_what_the_engine_reports_and_else_estimate(
    datas: list[bytes], streamed: bool, spent: tuple[int, int]
) -> None:
    telling = [*datas[:1], *datas[-3:]] if streamed else datas
    assert spent_tokens(b"x" * 40, telling, events=len(datas) if streamed else 0) == spent
