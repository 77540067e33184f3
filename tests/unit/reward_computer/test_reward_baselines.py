"""Baselines: the folds over trajectories and rewards, and normalisation by them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.bus.projection import Folded
from ratchet.core.contract import Outcome, Reward, Trajectory
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.trajectory import TaskContext
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.domain.history import CAPACITY, SLOTS, TurnHistory, add_trajectory, history_key
from ratchet.reward_computer.domain.normalization import (
    MIN_WINDOW,
    NO_PAST,
    ScoreWindows,
    Stats,
    add_reward,
    function_of,
    normalized,
    stats_of,
    windows_key,
)
from ratchet.reward_computer.domain.reward import Circumstances, RewardSpec, reward_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, feedback, received
from tests.unit.reward_computer.test_reward_components import turns

SPEC = RewardSpec(function=FUNCTION)


def history(counts: list[int]) -> TurnHistory:
    folded: TurnHistory | None = None
    for sequence, count in enumerate(counts, start=1):
        folded = add_trajectory(folded, received(trajectory(str(sequence), turns=turns(count)), sequence))
    assert folded is not None
    return folded


def test_a_history_is_read_as_it_was_before_a_trajectory() -> None:
    past = history([3, 5, 10, 20])
    assert past.before(trajectory(), 1, 1000) == Stats()
    assert past.before(trajectory(), 3, 1000) == Stats(2, 4.0, 1.0, 3, 5)
    assert past.before(trajectory(), 5, 2) == Stats(2, 15.0, 5.0, 10, 20)


def test_what_was_folded_later_does_not_change_an_earlier_baseline() -> None:
    counts = [1 + number % 7 for number in range(CAPACITY + 500)]
    assert history(counts).before(trajectory(), 1501, 1000) == history(counts[:1500]).before(trajectory(), 1501, 1000)


def test_a_history_is_bounded_and_fits_a_bucket() -> None:
    past = history([5] * (CAPACITY + 10))
    assert len(past.calls) == CAPACITY
    assert len(msgspec.json.encode(Folded(2010, past))) < 100_000


def test_the_same_trajectory_published_again_does_not_count_again() -> None:
    once = history([3, 5])
    again = add_trajectory(once, received(trajectory("1", turns=turns(3)), 3))
    assert again == once


def test_an_id_counts_that_lies_across_two_that_were_counted() -> None:
    folded: TurnHistory | None = None
    for sequence, end in enumerate(("aaaabbbb", "ccccdddd", "bbbbcccc", "ccccdddd"), start=1):
        counted = msgspec.structs.replace(trajectory(), trajectory_id=f"01890000-0000-7000-8000-0000{end}")
        folded = add_trajectory(folded, received(counted, sequence))
    assert folded is not None
    assert folded.sequences == [1, 2, 3]


def of_domain(domain: str | None, name: str = "one", role: str = "support") -> Trajectory:
    return trajectory(name, role=role, task_context=TaskContext(task_id="1", instructions="", domain=domain))


def test_however_many_domains_agents_name_there_are_only_so_many_states() -> None:
    keys = {history_key(of_domain(f"ticket {number}")) for number in range(5000)}
    assert len(keys) == SLOTS
    assert all(set(one) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") for one in keys)
    assert history_key(of_domain("x")) != history_key(of_domain("x", role="other"))
    assert history_key(of_domain(None)) == history_key(of_domain("none"))


def test_domains_that_share_a_state_do_not_share_a_history() -> None:
    first, second = (
        of_domain("coding", "1"),
        next(
            one
            for number in range(5000)
            if history_key(one := of_domain(f"d{number}", "2")) == history_key(of_domain("coding"))
        ),
    )
    folded = None
    for sequence, one in enumerate((first, second), start=1):
        folded = add_trajectory(folded, received(msgspec.structs.replace(one, turns=turns(sequence)), sequence))
    assert folded is not None
    assert folded.before(first, 3, 1000) == stats_of([1])
    assert folded.before(second, 3, 1000) == stats_of([2])


def reward(number: int, opinions: Any = (), windows: ScoreWindows = NO_PAST, **changes: Any) -> Reward:
    return reward_of(SPEC, Evidence(trajectory(str(number), **changes), opinions), Circumstances(AT, 0, windows))


def windows(rewards: list[Reward]) -> ScoreWindows:
    folded: ScoreWindows | None = None
    for sequence, one in enumerate(rewards, start=1):
        folded = add_reward(folded, received(one, sequence))
    return folded or NO_PAST


def test_windows_hold_the_raw_scores_of_what_applied_and_the_totals() -> None:
    made = [reward(1), reward(2, outcome=Outcome(status="failure")), reward(3, outcome=None)]
    folded = windows(made)
    assert folded.scores == {
        "task_completion": [1.0, 0.0],
        "efficiency": [0.5, 0.0],
        "total": [made[0].total_reward, 0.0],
    }


def test_a_revision_adds_opinions_and_what_is_scored_first_in_it() -> None:
    known = ("task_completion", "efficiency")
    revised = reward_of(SPEC, Evidence(trajectory("1"), [feedback(name="1")]), Circumstances(AT, 1, scored=known))
    folded = windows([reward(1), revised])
    assert {name: list(scores) for name, scores in folded.scores.items() if name != "total"} == {
        "task_completion": [1.0],
        "efficiency": [0.5],
        "user_feedback": [1.0],
    }


def test_windows_are_bounded_and_fit_a_bucket() -> None:
    folded = windows([reward(1)] * 1100)
    assert folded.stats("task_completion", 5000).count == 1000
    assert len(msgspec.json.encode(Folded(1100, folded))) < 200_000


def test_windows_are_by_role_and_function() -> None:
    other = RewardFunction(name="standard", version="2 (beta)")
    keys = {windows_key("a", FUNCTION), windows_key("b", FUNCTION), windows_key("a", other)}
    assert len(keys) == 3
    assert function_of(received(reward(1))) == windows_key("support", FUNCTION)
    assert function_of(received(trajectory())) is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 40))
def test_folding_again_from_any_stored_point_gives_the_same_state(counts: list[int], stop: int) -> None:
    messages = [trajectory(str(number % 25), turns=turns(1 + count)) for number, count in enumerate(counts)]

    def fold(state: TurnHistory | None, part: list[tuple[int, Any]]) -> TurnHistory | None:
        for sequence, message in part:
            state = add_trajectory(state, received(message, sequence))
        return state

    numbered = list(enumerate(messages, start=1))
    stored = fold(None, numbered[:stop])
    read = msgspec.json.decode(msgspec.json.encode(stored), type=TurnHistory | None)
    assert fold(read, numbered[stop:]) == fold(None, numbered)


PAST = Stats(100, 0.5, 0.25, 0.0, 1.0)


@pytest.mark.parametrize(
    ("method", "past", "expected"),
    [
        ("z-score", PAST, 1.2),
        ("min-max", Stats(100, 0.5, 0.25, 0.3, 1.3), 0.5),
        ("min-max", Stats(100, 0.5, 0.1, 0.3, 0.6), 1.0),
        ("none", PAST, 0.8),
        ("z-score", Stats(MIN_WINDOW - 1, 0.5, 0.25, 0.0, 1.0), 0.0),
        ("min-max", Stats(MIN_WINDOW - 1, 0.5, 0.25, 0.0, 1.0), 0.5),
        ("none", Stats(), 0.8),
        ("z-score", Stats(100, 0.5, 0.0, 0.5, 0.5), 0.0),
        ("min-max", Stats(100, 0.5, 0.0, 0.5, 0.5), 0.5),
    ],
)
def test_normalisation_with_cold_start_and_zero_variance(method: str, past: Stats, expected: float) -> None:
    assert normalized(0.8, past, method) == pytest.approx(expected)


def test_normalised_value_stands_beside_the_raw_one_with_its_parameters() -> None:
    past = windows(
        [reward(number, outcome=Outcome(status="success" if number % 2 else "failure")) for number in range(20)]
    )
    part = reward(30, windows=past).reward_components["task_completion"]
    assert (part.score, part.normalized) == (1.0, pytest.approx(1.0))
    assert part.parameters == {"method": "z-score", "count": 20, "mean": 0.5, "std": 0.5, "min": 0.0, "max": 1.0}
    total = reward(30, windows=past).normalization
    assert total is not None
    assert (total.method, total.min) == ("z-score", 0.0)


def test_a_revision_keeps_the_normalisation_of_what_did_not_change() -> None:
    past = windows(
        [reward(number, outcome=Outcome(status="success" if number % 3 else "failure")) for number in range(20)]
    )
    first = reward(30, windows=past)
    later = windows([reward(number) for number in range(50)])
    revised = reward_of(SPEC, Evidence(trajectory("30"), [feedback(name="30")]), Circumstances(AT, 1, later, first))
    kept = revised.reward_components["task_completion"]
    assert (kept.normalized, kept.parameters) == (
        first.reward_components["task_completion"].normalized,
        first.reward_components["task_completion"].parameters,
    )


@given(st.lists(st.floats(0, 1), max_size=50))
def test_moments_are_consistent(values: list[float]) -> None:
    stats = stats_of(values)
    assert stats.count == len(values)
    if values:
        assert stats.minimum <= stats.mean <= stats.maximum
        assert (stats.std == 0.0) >= (stats.minimum == stats.maximum)
