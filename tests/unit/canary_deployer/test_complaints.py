"""Complaints: which opinions count, on which arm, until when; the test over them, and what follows from it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain.cohorts import Cohort, Known, cohort_of, for_rollback, rollback_gain
from ratchet.canary_deployer.domain.complaints import ComplaintTest
from ratchet.canary_deployer.domain.e_processes import BLOCK, RISK_RATIOS, Floats
from ratchet.canary_deployer.domain.estimates import complaints_compared
from ratchet.canary_deployer.domain.rollout_statistics import LiveStatistics, Statistics
from ratchet.canary_deployer.domain.rules import COMPLAINTS, Rules, Stage, threshold
from ratchet.canary_deployer.domain.subjects import MEAN_SHARE
from ratchet.canary_deployer.domain.summary import e_values, summary
from ratchet.canary_deployer.domain.trajectories import (
    FAILED,
    Batch,
    Call,
    Compared,
    Event,
    Opinion,
    Score,
    Started,
    Terms,
    Trajectory,
    Window,
    opinion_of,
)
from ratchet.core.contract import Feedback, named_id
from ratchet.core.contract.reward import UPDATE
from tests.support.canary_scenes import by_subject, clustered, complaining, plain
from tests.support.canary_simulation import Scene, exact_interval, play
from tests.support.canary_world import CanaryWorld, quick_rules

COMPARED = Compared("r", 1, 2, frozenset({0.25}))
RULES = quick_rules(horizon_s=100.0)
VERSIONS = {"stable": 1, "canary": 2, "mixed": 1}
SUBJECT = "0123456789abcdef"


def start(name: str, arm: str = "canary", at: float = 0.0, subject: str | None = None) -> Started:
    return Started(name, at, arm, VERSIONS[arm], 0.25, "r", Terms(), subject)


def call(name: str, arm: str = "canary", at: float = 1.0, *, error: bool = False) -> Call:
    return Call(name, at, at == 1.0, arm, VERSIONS[arm], error, None if error else 100.0, False, at, at + 0.1)


def score(name: str, at: float = 10.0) -> Score:
    return Score(name, at, success=True, reward=0.5, violation=False)


def bad(name: str, at: float = 20.0) -> Opinion:
    return Opinion(name, at, bad=True)


def folded(*events: Event, as_of: float = 0.0, window: Window | None = None) -> Window:
    window = window or Window()
    window.fold(Batch(events, as_of), COMPARED, RULES)
    return window


def only(window: Window) -> Trajectory:
    return window.chunks[0].trajectories[0]


def cohort(window: Window) -> Cohort:
    return cohort_of(window.chunks[0], window.units, Known(silent=window.heard_until - RULES.horizon_s))


def harms(window: Window) -> list[float]:
    return for_rollback(cohort(window), COMPLAINTS).tolist()


def feedback(kind: str, value: float | bool | str | None = None, rater: str | None = None) -> Feedback:
    return Feedback(
        feedback_id=named_id("feedback", kind, value),
        trajectory_id=named_id("t"),
        kind=kind,
        at=START,
        value=value,
        rater=rater,
    )


@pytest.mark.parametrize(
    ("given", "is_bad"),
    [
        (feedback("thumbs", False), True),
        (feedback("thumbs", True), False),
        (feedback("rating", 2.0), True),
        (feedback("rating", 3.0), False),
        (feedback("correction", "no: Tuesday"), True),
        (feedback("abandoned"), True),
        (feedback("comment", "hm"), None),
        (feedback("metric", 0.0), None),
        (feedback(UPDATE), None),
        (feedback("thumbs", False, rater="ann"), None),
    ],
    ids=lambda value: value.kind if isinstance(value, Feedback) else str(value),
)
def test_opinions_of_users_are_read_and_those_of_raters_are_not(given: Feedback, is_bad: bool | None) -> None:
    opinion = opinion_of(given, 7.0)
    assert (None if opinion is None else opinion.bad) == is_bad
    assert opinion is None or (opinion.trajectory_id, opinion.at) == (named_id("t"), 7.0)


def test_a_complaint_counts_once_beside_other_opinions() -> None:
    opinions = (Opinion("t", 5.0, bad=False), bad("t", 20.0), bad("t", 30.0), Opinion("t", 40.0, bad=False))
    window = folded(start("t"), *opinions)
    assert (window.canary.rated, window.canary.complaints, only(window).complained) == (1, 1, True)


def test_a_complaint_after_the_horizon_is_none_however_soon_it_is_read() -> None:
    window = folded(start("t"), bad("t", 100.5))
    assert (window.canary.rated, window.canary.complaints, harms(window)) == (0, 0, [0.0])
    folded(bad("t", 99.0), window=folded(as_of=100.5, window=window))
    assert not only(window).complained, "what was settled without a complaint stays so"


def test_complaint_that_is_pending_stands_at_bound_until_horizon_is_over() -> None:
    window = folded(start("c"), start("s", "stable"), score("c"), score("s"), as_of=100.0)
    assert harms(window) == [0.0, 1.0]
    folded(as_of=100.5, window=window)
    assert harms(window) == [0.0, 0.0]


def test_a_complaint_is_a_smaller_harm_on_the_canary_by_the_margin() -> None:
    window = folded(start("c"), start("s", "stable"), bad("c"), bad("s"))
    assert harms(window) == pytest.approx([1 / 1.5, 1.0])


@pytest.mark.parametrize("error", [True, False], ids=["failed", "moved"])
def test_a_complaint_counts_on_the_arm_that_was_drawn(error: bool) -> None:
    window = folded(start("t"), call("t", error=error), call("t", "mixed", at=3.0), bad("t"))
    assert (only(window).outcome == FAILED) == error
    assert (window.canary.complaints, window.stable.complaints, harms(window)) == (1, 0, pytest.approx([1 / 1.5]))


def test_outcomes_are_folded_for_good_before_their_complaints_are() -> None:
    names = [f"t{number}" for number in range(BLOCK)]
    live = LiveStatistics(Statistics(), [], RULES)
    live.fold(
        Batch([event for name in names for event in (start(name), call(name), score(name))], 50.0), COMPARED, RULES
    )
    shown = live.record(0.25)
    assert (shown.closed, shown.heard, shown.complaints.block) == (1, 0, 0)
    live.fold(Batch([bad(name, 60.0) for name in names[:8]], 60.0), COMPARED, RULES)
    raised = live.record(0.25).evidence
    assert raised.suspension[COMPLAINTS] > 1
    assert raised.caution == raised.suspension[COMPLAINTS]
    live.fold(Batch([], 100.5), COMPARED, RULES)
    after = live.record(0.25)
    assert (after.heard, after.complaints.block) == (1, 1)
    assert after.evidence.suspension[COMPLAINTS] == pytest.approx(raised.suspension[COMPLAINTS])


def test_a_subject_stands_for_one_complaint_by_its_first_trajectory() -> None:
    """The second one of the same user suspends no more by subject, and does by trajectory."""
    test = ComplaintTest({1: 1.0})

    def values(*complained: str) -> tuple[float, float]:
        starts = [start("a", subject=SUBJECT), start("b", subject=SUBJECT)]
        shown = test.evaluate(test.initial_state(), [test.products(cohort(folded(*starts, *map(bad, complained))))])
        return float(shown.by_subject), float(shown.by_trajectory)

    first, both, second = values("a"), values("a", "b"), values("b")
    assert first[0] == first[1] == both[0] < both[1]
    assert second == (1.0, pytest.approx(first[1]))


def test_factors_of_half_as_many_complaints_again_have_the_mean_1() -> None:
    """Over both arms that a trajectory may draw; above 1 for more, and below it for an equal canary."""
    test = ComplaintTest({1: 1.0})

    def mean(canary: float, stable: float) -> Floats:
        total = np.zeros(len(RISK_RATIOS))
        for arm, weight, rate in (("canary", 0.25, canary), ("stable", 0.75, stable)):
            for complains, chance in ((True, rate), (False, 1 - rate)):
                events = [start("t", arm), *([bad("t")] if complains else [])]
                factors = test.products(cohort(folded(*events, as_of=100.5))).running[0, -len(RISK_RATIOS) :]
                total += weight * chance * factors
        return total

    assert mean(0.06, 0.04) == pytest.approx(np.ones(len(RISK_RATIOS)))
    assert (mean(0.07, 0.04) > 1).all()
    assert (mean(0.04, 0.04) < 1).all()


def test_gain_of_a_unit_is_mean_of_its_members_with_those_to_come_at_bound() -> None:
    """For k = 20: of two trajectories that started, and eighteen that may still."""
    window = folded(start("a", subject=SUBJECT), start("b", "stable", subject=SUBJECT), bad("a"))
    test, known = ComplaintTest({1: 1 - MEAN_SHARE, 20: MEAN_SHARE}), cohort(window)
    single = rollback_gain(known, COMPLAINTS, None, 0.0)
    assert single == pytest.approx([1 / 1.5 / 0.25, -1 / 0.75])
    factors = test.products(known).running[0, len(RISK_RATIOS) : 2 * len(RISK_RATIOS)]
    gain = (single.sum() - 18 / 0.75) / 20
    stakes = (test.products(known).running[0, : len(RISK_RATIOS)] - 1) / single[0]
    assert factors == pytest.approx(1 + stakes * gain)


def test_complaints_take_their_share_from_the_evidence() -> None:
    budget = Rules(stages=()).budget
    assert (budget.evidence, budget.complaints, budget.total) == (0.025, 0.005, pytest.approx(0.05))
    more = complaints_compared(RULES).more_evidence
    share = RULES.shares["failure"]
    assert budget.evidence * share == pytest.approx((0.03 * share) ** (1 + more))


async def test_a_canary_of_which_users_complain_is_rolled_back_by_that_alone() -> None:
    world = CanaryWorld(quick_rules(horizon_s=120.0))
    await world.with_policies(1, 2)
    rollout = await world.until("running")
    for _ in range(40):
        rollout = await world.rollout()
        if not rollout.active:
            break
        world.clock.advance(30)
        await world.play(40, 0.9, 0.9, complaints=(0.02, 0.5))
    assert (rollout.state, rollout.reason.partition(":")[0]) == ("rolled_back", "more complaints than the margin")
    shown = summary(rollout, world.rules)
    assert shown.e_values["tests"][COMPLAINTS] >= shown.thresholds[COMPLAINTS] == threshold(0.005)
    assert shown.arms.canary.complaints / shown.arms.canary.started > 0.2
    assert shown.complaints is not None


async def test_complaints_survive_a_restart_of_the_deployer() -> None:
    world = CanaryWorld(quick_rules(horizon_s=1000.0))
    await world.with_policies(1, 2)
    await world.until("running")
    await world.play(300, 0.9, 0.9, complaints=(0.02, 0.3))
    world.clock.advance(2)
    await world.controller.step()
    before = await world.rollout()
    world.restart()
    await world.controller.step()
    after = await world.rollout()
    assert after.feedback_seq == before.feedback_seq > 0
    assert e_values(after.statistics, world.rules)["tests"] == e_values(before.statistics, world.rules)["tests"]
    assert msgspec.structs.asdict(after.statistics.canary) == msgspec.structs.asdict(before.statistics.canary)


@pytest.mark.parametrize(
    "scene",
    [
        Scene(complaining(plain(0.3, 0.3, 60, 60), (0.04, 0.06), mean_s=(400.0, 5.0))),
        by_subject(complaining(clustered(50, 5), (0.1, 0.15), spread=1.0), seconds=2000.0),
    ],
    ids=["at once on the canary", "by subject"],
)
def test_simulation_rarely_rolls_back_a_canary_within_margin_of_complaints(scene: Scene) -> None:
    rolled_back = play(scene, rollouts=30, seed=21).rolled_back
    assert exact_interval(rolled_back, 30)[0] <= 0.05, rolled_back


def test_simulation_rolls_back_canary_with_many_complaints_by_nothing_else() -> None:
    scene = Scene(complaining(plain(0.3, 0.3, 20, 20), (0.04, 0.4)), stages=(Stage(0.25, 9e9, 20),))
    ends = play(scene, rollouts=20, seed=22)
    assert ends.rolled_back == 20
    assert {reason.partition(":")[0] for reason in ends.reasons} == {"more complaints than the margin"}
