"""Holding out: the parts share nothing, and the seed alone decides."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ratchet.trainer_worker.training.learner.pairs import split

KEYS = st.lists(st.tuples(st.integers(0, 9), st.integers(10, 14)), min_size=1, max_size=40)


@given(KEYS, st.floats(0, 1), st.integers(0, 5))
def test_no_name_is_in_both_parts_and_nothing_is_lost(keys: list[tuple[int, int]], fraction: float, seed: int) -> None:
    learn, held = split(keys, fraction, seed)
    assert sorted([*learn, *held]) == list(range(len(keys)))
    assert len(held) <= round(fraction * len(keys))
    names = [{name for index in part for name in keys[index]} for part in (learn, held)]
    assert not names[0] & names[1]
    assert split(keys, fraction, seed) == (learn, held)


def test_examples_that_share_a_name_through_others_stay_together() -> None:
    keys = [("prompt a", "task 1"), ("prompt b", "task 1"), ("prompt b", "task 2"), ("prompt c", "task 3")]
    learn, held = split(keys, 0.25, seed=0)
    assert (learn, held) == ([0, 1, 2], [3])


def test_another_seed_holds_out_others() -> None:
    keys = [(f"prompt {number}",) for number in range(40)]
    parts = [split(keys, 0.25, seed)[1] for seed in range(3)]
    assert [len(held) for held in parts] == [10, 10, 10]
    assert parts[0] != parts[1] != parts[2]


def test_nothing_is_held_out_unless_it_is_asked_for() -> None:
    assert split([("a",), ("b",)], 0.0, seed=0) == ([0, 1], [])
