"""Units of subjects: what counts in them, what is open, and that a subject has one in a rollout."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest

from ratchet.canary_deployer.domain.cohorts import cohort_of, mean_rollback_gain, units_settled
from ratchet.canary_deployer.domain.e_processes import (
    BLOCK,
    LARGEST_STAKE,
    lowest_difference,
    rollback_factors,
    weighted_difference,
)
from ratchet.canary_deployer.domain.rollout_statistics import ChunkName, LiveStatistics, Statistics
from ratchet.canary_deployer.domain.rules import FAILURE, REWARD
from ratchet.canary_deployer.domain.subjects import (
    FIRST,
    MEAN_SHARE,
    UNCOUNTED,
    SubjectFilter,
    SubjectsBefore,
    subjects_before,
)
from ratchet.canary_deployer.domain.trajectories import Batch, Call, Chunk, Compared, Score, Started, Terms, Window
from tests.support.canary_world import quick_rules

PAIR = Compared("r", 1, 2, frozenset({0.1, 0.5}))
RULES = quick_rules(horizon_s=100.0, mean_share=0.5)
ALICE, BOB = "a" * 16, "b" * 16


def started(number: int, at: float, subject: str | None, *, canary: bool = True, weight: float = 0.5) -> Started:
    arm, version = ("canary", 2) if canary else ("stable", 1)
    return Started(f"t{number}", at, arm, version, weight, "r", Terms(0.2, 0.2, 0.2, 0.5, 900.0), subject)


def scored(number: int, at: float, *, success: bool) -> list[Call | Score]:
    arm = ("canary", 2)
    call = Call(f"t{number}", at, True, *arm, False, 900.0, False, at, at)
    return [call, Score(f"t{number}", at, success, float(success), False)]


def folded(*events: object, as_of: float = 50.0, pair: Compared = PAIR) -> Window:
    window = Window()
    window.fold(Batch(list(events), as_of), pair, RULES)  # pyright: ignore[reportArgumentType]
    return window


def places(window: Window) -> list[int]:
    return [trajectory.place for chunk in window.chunks for trajectory in chunk.trajectories]


def test_a_subject_opens_one_unit_and_what_has_no_name_is_its_own() -> None:
    window = folded(*(started(n, n, subject) for n, subject in enumerate((ALICE, None, ALICE, BOB, None, ALICE))))
    assert places(window) == [0, 0, 1, 0, 0, 2]
    assert window.subjects == 4


@pytest.mark.parametrize(
    "later",
    [started(1, 101.0, ALICE), started(1, 5.0, ALICE, weight=0.1)],
    ids=["after the horizon", "under another weight"],
)
def test_a_trajectory_that_does_not_count_ends_its_subjects_unit(later: Started) -> None:
    window = folded(started(0, 0.0, ALICE), later, started(2, 6.0, ALICE), as_of=7.0)
    assert places(window) == [0, UNCOUNTED, UNCOUNTED]
    assert window.units[ALICE].coming == 0


def test_a_unit_ends_with_its_last_trajectory_that_counts() -> None:
    window = folded(*(started(n, n, ALICE) for n in range(FIRST + 5)))
    assert places(window) == [*range(FIRST), *[UNCOUNTED] * 5]
    assert window.units[ALICE].coming == 0


def test_a_unit_ends_with_its_horizon() -> None:
    assert folded(started(0, 0.0, ALICE), as_of=100.0).units[ALICE].coming == FIRST - 1
    assert folded(started(0, 0.0, ALICE), as_of=100.1).units[ALICE].coming == 0


def test_a_subject_that_stands_for_many_is_split_into_trajectories() -> None:
    split = Compared("r", 1, 2, PAIR.weights, frozenset({ALICE}))
    window = folded(*(started(n, n, ALICE) for n in range(3)), pair=split)
    assert (places(window), window.subjects) == ([0, 0, 0], 3)


def test_what_is_open_counts_at_the_bound_and_then_as_it_is() -> None:
    """One settled canary failure of Alice's, one that is pending, and room for 18 more."""
    window = folded(started(0, 0.0, ALICE), started(1, 1.0, ALICE), *scored(0, 2.0, success=False))
    cohort = cohort_of(window.chunks[0], window.units)
    gain = mean_rollback_gain(cohort, FAILURE, None, 0.05)
    lowest = lowest_difference(np.array([0.5]), np.zeros(1))[0]
    assert gain[0] == pytest.approx(((1 / 0.5 - 0.05) + (0 - 0.05) + (FIRST - 2) * (lowest - 0.05)) / FIRST)
    assert not units_settled(cohort, FIRST)[0]
    window.fold(Batch(scored(1, 60.0, success=False), 101.0), PAIR, RULES)
    cohort = cohort_of(window.chunks[0], window.units)
    assert mean_rollback_gain(cohort, FAILURE, None, 0.05)[0] == pytest.approx(2 * (1 / 0.5 - 0.05) / FIRST)
    assert units_settled(cohort, FIRST).all()


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("centre", [0.0, 0.3, 1.0])
def test_the_worst_unit_leaves_a_part_of_the_wealth(weight: float, centre: float) -> None:
    w, m = np.array([weight]), np.array([centre])
    worst = lowest_difference(w, m) - 0.05
    assert rollback_factors(w, m, worst, 0.05).min() >= 1 - LARGEST_STAKE - 1e-9


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_units_gain_has_mean_0_however_its_length_depends_on_the_past(k: int) -> None:
    """Less its subject's effect, +.3 or -.2. A trajectory follows only while none has failed."""
    weight, mean = 0.25, 0.0
    for effect in (0.3, -0.2):
        for arms in itertools.product((False, True), repeat=k):
            for fails in itertools.product((False, True), repeat=k):
                chance, gain = 0.5, 0.0
                for canary, failed in zip(arms, fails, strict=True):
                    p = 0.4 + effect if canary else 0.4
                    chance *= (weight if canary else 1 - weight) * (p if failed else 1 - p)
                differences = weighted_difference(
                    np.array(arms), np.full(k, weight), np.array(fails, float), np.full(k, 0.3)
                )
                for failed, difference in zip(fails, differences.tolist(), strict=True):
                    gain += difference - effect
                    if failed:
                        break
                mean += chance * gain / k
    assert mean == pytest.approx(0.0, abs=1e-12)


def test_a_subject_whose_trajectories_are_forgotten_opens_no_second_unit() -> None:
    rules = quick_rules(horizon_s=100.0, keep_seen=BLOCK)
    live = LiveStatistics(Statistics(), [], rules)
    events = [started(n, n / 100, f"{n:016x}") for n in range(3 * BLOCK)]
    live.fold(Batch(events, 4.0), PAIR, rules)
    live.fold(Batch([], 1e6), PAIR, rules)
    assert live.window.chunks[0].number == 2
    again = [started(3 * BLOCK + n, 1e6 + n, f"{n:016x}") for n in range(BLOCK)]
    stored = msgspec.json.decode(msgspec.json.encode(live.window.chunks), type=list[Chunk])
    names = tuple(ChunkName(chunk.number, "x") for chunk in stored)
    restarted = LiveStatistics(live.record(0.5, names), stored, rules)
    for statistics in (live, restarted):
        statistics.fold(Batch(again, 1e6 + 1000), PAIR, rules)
        assert {trajectory.place for trajectory in statistics.window.chunks[-1].trajectories} == {UNCOUNTED}
        assert statistics.window.subjects == 3 * BLOCK


def test_the_filter_takes_few_new_subjects_for_old_ones() -> None:
    rng = np.random.default_rng(0)
    names = [f"{number:016x}" for number in rng.integers(0, 2**63, 110_000).tolist()]
    old = SubjectFilter().with_subjects(names[:100_000])
    assert all(name in old for name in names[:1000])
    assert sum(name in old for name in names[100_000:]) < 150


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([], SubjectsBefore()),
        ([None] * 50, SubjectsBefore(starts=50, subjects=50)),
        ([f"{n:016x}" for n in range(50)], SubjectsBefore(starts=50, subjects=50)),
        ([ALICE, BOB] * 10, SubjectsBefore(starts=20, subjects=2, mean_share=MEAN_SHARE)),
        ([ALICE] * 51 + [None] * 49, SubjectsBefore(starts=100, subjects=100, split=(ALICE,))),
        ([ALICE] * 19, SubjectsBefore(starts=19, subjects=1, mean_share=MEAN_SHARE)),
        ([ALICE] * 50 + [None] * 50, SubjectsBefore(starts=100, subjects=51, mean_share=MEAN_SHARE)),
    ],
    ids=["none", "unnamed", "each once", "they come back", "one stands for many", "too few to tell", "one comes often"],
)
def test_what_the_latest_starts_say_of_subjects(starts: list[str | None], expected: SubjectsBefore) -> None:
    assert subjects_before(starts) == expected


def test_where_each_trajectory_is_its_own_subject_both_tests_are_the_same() -> None:
    rules = quick_rules(horizon_s=100.0)
    live = LiveStatistics(Statistics(), [], rules)
    events = [event for n in range(200) for event in (started(n, n / 10, None), *scored(n, n / 10, success=n % 3 > 0))]
    live.fold(Batch(sorted(events, key=lambda event: not isinstance(event, Started)), 30.0), PAIR, rules)
    shown = live.record(0.5).evidence
    assert shown.rollback == {name: shown.suspension[name] for name in shown.rollback}
    assert (shown.promotion, shown.run) == (shown.promotion_by_trajectory, shown.run_of_trajectories)
    assert REWARD in shown.promotion
