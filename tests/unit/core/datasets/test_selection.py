"""A job learns from everything its filter admits: newest groups first, nothing twice, no evaluation traffic."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.training import DatasetFilter, DateRange
from ratchet.core.datasets.domain.selection import (
    Candidate,
    TrajectoryRules,
    age_order,
    is_held_out,
    reason_against,
    select,
)
from tests.support.training import after

EVERYTHING = TrajectoryRules(filter=DatasetFilter(), needs_calls=True, consumed=frozenset())


def candidate(name: str = "t", **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "trajectory_id": name,
        "task_key": name,
        "ended_at": after(0),
        "confidence": 1.0,
        "reward": 0.5,
        "source": "assembled",
        "domain": "coding",
        "profile": None,
        "turns": 3,
        "arms": frozenset({"stable"}),
        "trainable_calls": 3,
    }
    return Candidate(**{**values, **changes})


def rules(needs_calls: bool = True, consumed: frozenset[str] = frozenset(), **chosen: Any) -> TrajectoryRules:
    return TrajectoryRules(filter=DatasetFilter(**chosen), needs_calls=needs_calls, consumed=consumed)


@pytest.mark.parametrize(
    ("left_out", "rule", "reason"),
    [
        (candidate(arms=frozenset({"stable", "mixed"})), EVERYTHING, "mixed_or_pinned"),
        (candidate(arms=frozenset({"pinned"})), rules(needs_calls=False), "mixed_or_pinned"),
        (candidate("seen"), rules(consumed=frozenset({"seen"})), "consumed_by_lineage"),
        (candidate(), rules(date_range=DateRange(start=after(1))), "outside_date_range"),
        (candidate(), rules(date_range=DateRange(end=after(0))), "outside_date_range"),
        (candidate(), rules(sources=["import:tau-bench"]), "source"),
        (candidate(), rules(task_domains=["writing"]), "task_domain"),
        (candidate(domain=None), rules(task_domains=["writing"]), "task_domain"),
        (candidate(profile="hacker"), rules(exclude_subordinate_profiles=["hacker"]), "subordinate_profile"),
        (candidate(reward=0.4), rules(min_reward=0.5), "below_min_reward"),
        (candidate(reward=0.6), rules(max_reward=0.5), "above_max_reward"),
        (candidate(confidence=0.0), EVERYTHING, "reward_without_evidence"),
        (candidate(turns=9), rules(max_trajectory_length=8), "too_long"),
        (candidate(trainable_calls=0), EVERYTHING, "no_trainable_call"),
    ],
)
def test_trajectory_is_left_out_for_a_counted_reason(left_out: Candidate, rule: TrajectoryRules, reason: str) -> None:
    selection = select([left_out, candidate("good", ended_at=after(0.5))], rule, 10)
    assert reason in selection.left_out
    assert reason_against(left_out, rule) == reason


def test_a_trajectory_that_the_filter_admits_is_chosen() -> None:
    admitting = rules(
        min_reward=0.5,
        max_trajectory_length=3,
        date_range=DateRange(start=after(0), end=after(1)),
        task_domains=["coding", "writing"],
        exclude_subordinate_profiles=["hacker"],
        sources=["assembled"],
    )
    assert select([candidate()], admitting, 10).chosen == [candidate()]


def test_text_is_learned_from_without_calls() -> None:
    written = candidate("written", trainable_calls=0)
    assert select([written], rules(needs_calls=False), 10).chosen == [written]


def test_the_newest_trajectories_are_chosen_and_listed_oldest_first() -> None:
    all_of_them = [candidate(str(n), ended_at=after(n)) for n in range(10)]
    selection = select(all_of_them, EVERYTHING, 3)
    assert [each.trajectory_id for each in selection.chosen] == ["7", "8", "9"]
    assert selection.left_out == {"beyond_sample_size": 7}


def test_a_group_that_does_not_fit_is_cut_to_the_room_that_is_left() -> None:
    group = [candidate(f"g{n}", task_key="g", ended_at=after(n)) for n in range(4)]
    single = candidate("single", ended_at=after(-5))
    newest = [candidate(f"n{n}", task_key="n", ended_at=after(10 + n)) for n in range(3)]
    for room, rest in ((5, {"g2", "g3"}), (4, {"single"})):
        chosen = {each.trajectory_id for each in select([*group, single, *newest], EVERYTHING, room).chosen}
        assert chosen == {"n0", "n1", "n2"} | rest


def test_one_large_group_leaves_room_for_all_others() -> None:
    """An agent that sends one task id for everything, and three runs with another."""
    large = [candidate(f"g{n}", task_key="g", ended_at=after(n)) for n in range(1000)]
    others = [candidate(f"s{n}", ended_at=after(-n)) for n in range(3)]
    selection = select([*large, *others], EVERYTHING, 400)
    assert {"s0", "s1", "s2"} <= {each.trajectory_id for each in selection.chosen}
    assert len(selection.chosen) == 400
    assert {each.trajectory_id for each in selection.chosen} >= {f"g{n}" for n in range(603, 1000)}
    assert selection.left_out == {"beyond_sample_size": 603}


def test_where_not_all_tasks_fit_the_newest_keep_eight_tries() -> None:
    tries = [
        candidate(f"{key}-{n}", task_key=str(key), ended_at=after(100 * key + n))
        for key in range(10)
        for n in range(20)
    ]
    chosen = select(tries, EVERYTHING, 40).chosen
    assert Counter(one.task_key for one in chosen) == {"9": 8, "8": 8, "7": 8, "6": 8, "5": 8}


def test_a_group_larger_than_the_sample_is_cut_when_there_is_no_other() -> None:
    group = [candidate(f"g{n}", task_key="g", ended_at=after(n)) for n in range(4)]
    assert [each.trajectory_id for each in select(group, EVERYTHING, 2).chosen] == ["g2", "g3"]
    assert [each.trajectory_id for each in select(group, EVERYTHING, 1).chosen] == ["g3"]


SHAPES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50), st.sampled_from("abc")), max_size=60)


@given(SHAPES, st.integers(1, 40), st.booleans())
def test_sample_is_full_fair_and_comparable(shape: list[tuple[int, int, str]], size: int, balanced: bool) -> None:
    known = [
        candidate(str(n), task_key=f"{key}{domain}", ended_at=after(at), domain=domain)
        for n, (key, at, domain) in enumerate(shape)
    ]
    selection = select(known, rules(balance_domains=balanced), size)
    chosen = selection.chosen
    assert sum(selection.left_out.values()) + len(chosen) == len(known)
    assert len({each.trajectory_id for each in chosen}) == len(chosen) <= size
    assert len(chosen) > 0 or not known
    assert len(chosen) >= min(size, len(known)) - (
        3 if balanced else 1
    )  # no single try of several fills the last place
    stored, taken = (Counter(each.task_key for each in some) for some in (known, chosen))
    for key, count in taken.items():
        assert count > 1 or stored[key] == 1 or size < 6
        newest = sorted((each for each in known if each.task_key == key), key=age_order)[-count:]
        assert [each for each in chosen if each.task_key == key] == newest
    if len(known) <= size:
        assert taken == stored


def test_domains_share_a_sample_evenly_and_leave_what_they_do_not_need() -> None:
    sizes = {"a": 100, "b": 100, "c": 5}
    known = [
        candidate(f"{domain}{n}", domain=domain, ended_at=after(n if domain == "a" else -n))
        for domain, size in sizes.items()
        for n in range(size)
    ]
    plain, even = (select(known, rules(balance_domains=balanced), 65).chosen for balanced in (None, True))
    assert Counter(one.domain for one in plain)["a"] > 60
    assert Counter(one.domain for one in even) == {"a": 30, "b": 30, "c": 5}


@pytest.mark.parametrize(
    ("limit", "versions", "reason"),
    [
        (None, [1], "too_stale"),
        (None, [2, 10], None),
        (1, [10, 2], "too_stale"),
        (0, [10], None),
        (0, [99], None),
        (0, [], None),
    ],
)
def test_staleness_is_a_filter_by_generations(limit: int | None, versions: list[int], reason: str | None) -> None:
    one = candidate(versions=frozenset(versions))
    generations = {1: 9, 2: 8, 10: 0}
    learning = TrajectoryRules(DatasetFilter(max_staleness=limit), True, frozenset(), generations)
    assert reason_against(one, learning) == reason
    chats = TrajectoryRules(DatasetFilter(max_staleness=limit), False, frozenset(), generations)
    assert reason_against(one, chats) == (reason if limit is not None else None)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_left_out(reward: float) -> None:
    assert reason_against(candidate(reward=reward), rules(needs_calls=False)) == "reward_not_finite"


def test_what_is_too_old_to_be_listed_is_counted() -> None:
    assert select([candidate()], EVERYTHING, 10, unlisted=7).left_out == {"beyond_history": 7}


def test_the_held_out_share_of_tasks_never_trains_whatever_its_tries() -> None:
    tries = [candidate(f"{task}-{number}", task_key=f"task {task}") for task in range(200) for number in range(3)]
    chosen = select(tries, rules(held_out=0.1), 1000)
    trained = {one.task_key for one in chosen.chosen}
    held = {f"task {task}" for task in range(200)} - trained
    assert 10 <= len(held) <= 30
    assert chosen.left_out == {"held_out": 3 * len(held)}
    assert all(is_held_out(key, 0.1) for key in held)
    assert not any(is_held_out(key, 0.1) for key in trained)
    assert select(tries, rules(), 1000).left_out == {}
