"""A job learns from everything its filter admits: newest groups first, nothing twice, no evaluation traffic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.contract.training import DatasetFilter, DateRange
from ratchet.datasets.domain.selection import Candidate, TrajectoryRules, reason_against, select
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
        (candidate(confidence=0.0), EVERYTHING, "reward_without_evidence"),
        (candidate(turns=9), rules(max_trajectory_length=8), "too_long"),
        (candidate(trainable_calls=0), EVERYTHING, "no_trainable_call"),
    ],
)
def test_a_trajectory_is_left_out_for_a_reason_that_is_counted(
    left_out: Candidate, rule: TrajectoryRules, reason: str
) -> None:
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


def test_text_may_be_learned_from_again_and_without_calls() -> None:
    known = candidate("seen", trainable_calls=0)
    assert select([known], rules(needs_calls=False, consumed=frozenset({"seen"})), 10).chosen == [known]


def test_the_newest_trajectories_are_chosen_and_listed_oldest_first() -> None:
    all_of_them = [candidate(str(n), ended_at=after(n)) for n in range(10)]
    selection = select(all_of_them, EVERYTHING, 3)
    assert [each.trajectory_id for each in selection.chosen] == ["7", "8", "9"]
    assert selection.left_out == {"beyond_sample_size": 7}


def test_a_group_is_taken_whole_or_not_at_all() -> None:
    group = [candidate(f"g{n}", task_key="g", ended_at=after(n)) for n in range(4)]
    single = candidate("single", ended_at=after(-5))
    newest = [candidate(f"n{n}", task_key="n", ended_at=after(10 + n)) for n in range(3)]
    selection = select([*group, single, *newest], EVERYTHING, 5)
    assert {each.trajectory_id for each in selection.chosen} == {"n0", "n1", "n2", "single"}


def test_a_group_larger_than_the_sample_is_cut_when_there_is_no_other() -> None:
    group = [candidate(f"g{n}", task_key="g", ended_at=after(n)) for n in range(4)]
    assert [each.trajectory_id for each in select(group, EVERYTHING, 2).chosen] == ["g2", "g3"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=30), st.integers(1, 30))
def test_no_more_than_asked_for_and_no_group_split_that_fits(shape: list[tuple[int, int]], size: int) -> None:
    known = [candidate(str(n), task_key=str(key), ended_at=after(at)) for n, (key, at) in enumerate(shape)]
    chosen = select(known, EVERYTHING, size).chosen
    assert len(chosen) <= size
    assert len(chosen) > 0 or not known
    groups = {key: [each for each in known if each.task_key == key] for key in {each.task_key for each in known}}
    if any(len(group) <= size for group in groups.values()):
        for key in {each.task_key for each in chosen}:
            assert [each for each in known if each in chosen and each.task_key == key] == groups[key]
