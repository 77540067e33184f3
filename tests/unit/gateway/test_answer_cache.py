"""Answers that are kept: only what is drawn without chance, per policy, within a bound."""

from __future__ import annotations

from ratchet.contract.turn import Sampling
from ratchet.gateway.domain.answer_cache import AnswerCache, cache_key

GREEDY = Sampling(temperature=0.0)


def test_only_what_a_known_policy_says_at_temperature_zero_is_kept() -> None:
    cache = AnswerCache(1000)
    assert cache.takes("d" * 64, GREEDY)
    assert not cache.takes("d" * 64, Sampling(temperature=0.1))
    assert not cache.takes("", GREEDY)
    assert not AnswerCache(0).takes("d" * 64, GREEDY)


def test_another_policy_another_route_or_another_request_is_another_answer() -> None:
    key = cache_key("a" * 64, "/completions", {"x": 1, "y": 2})
    assert key == cache_key("a" * 64, "/completions", {"y": 2, "x": 1})
    others = {
        cache_key("b" * 64, "/completions", {"x": 1, "y": 2}),
        cache_key("a" * 64, "/chat/completions", {"x": 1, "y": 2}),
        cache_key("a" * 64, "/completions", {"x": 1, "y": 3}),
    }
    assert key not in others
    assert len(others) == 3


def test_the_least_recently_used_answers_make_room_and_huge_ones_are_not_kept() -> None:
    cache = AnswerCache(160)
    for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g"):
        cache.put(name, b"0123456789ABCDEF12")
    assert cache.size == sum(1 for _ in range(len(cache))) * 18
    assert cache.get(b"a") == b"0123456789ABCDEF12"
    for name in (b"h", b"i", b"j"):
        cache.put(name, b"0123456789ABCDEF12")
    assert cache.size <= 160
    assert (cache.get(b"a"), cache.get(b"b")) == (b"0123456789ABCDEF12", None)
    cache.put(b"huge", "x" * 200)
    assert cache.get(b"huge") is None
