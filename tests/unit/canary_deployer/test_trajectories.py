"""Which trajectories count, in which order and with which outcome; a value that a test has used never changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain.cohorts import cohort_of, for_promotion, for_rollback
from ratchet.canary_deployer.domain.e_processes import BLOCK
from ratchet.canary_deployer.domain.rules import FAILURE, MISSED, Rules
from ratchet.canary_deployer.domain.trajectories import (
    FAILED,
    MISSING,
    MOVED,
    PENDING,
    SUCCESS,
    UNSCORED,
    Batch,
    Call,
    Compared,
    Event,
    Score,
    Started,
    Terms,
    Trajectory,
    Window,
    call_of,
    key_of,
    score_of,
    started_of,
)
from ratchet.core.contract.reward import RewardComponent
from ratchet.core.contract.state import Route
from tests.support.canary_world import quick_rules, reward_of, start_of, turn_of

RULES = quick_rules(horizon_s=100.0)
PAIR = Compared("r", stable_version=1, canary_version=2, weights=frozenset({0.0, 0.25, 1.0}))


def start(name: str, arm: str = "canary", at: float = 0.0, **changes: object) -> Started:
    plain = Started(name, at, arm, 2 if arm == "canary" else 1, 0.25, "r", Terms())
    return replace(plain, **changes)


def call(name: str, arm: str = "canary", at: float = 1.0, **changes: object) -> Call:
    version = 2 if arm == "canary" else 1
    plain = Call(name, at, first=True, arm=arm, version=version, error=False, latency_ms=10.0)
    return replace(plain, **changes)


def failing(name: str, arm: str = "canary", began: float = 1.0, **changes: object) -> Call:
    """A call that takes a second to fail."""
    return call(name, arm, error=True, latency_ms=None, began=began, ended=began + 1.0, **changes)


def answered(name: str, arm: str = "mixed", began: float = 1.0) -> Call:
    """A later call, of another arm unless one is named."""
    return call(name, arm, first=False, began=began, ended=began + 1.0)


def score(name: str, at: float = 10.0, success: bool | None = True, **changes: object) -> Score:
    return replace(Score(name, at, success, 0.8 if success else 0.0, False), **changes)


def folded(*events: Event, window: Window | None = None, as_of: float = 0.0, rules: Rules = RULES) -> Window:
    window = window or Window()
    window.fold(Batch(events, as_of), PAIR, rules)
    return window


def known(window: Window, name: str) -> Trajectory:
    return next(one for chunk in window.chunks for one in chunk.trajectories if one.key == key_of(name))


def test_trajectories_stand_in_the_order_of_their_starts() -> None:
    window = folded(start("a", "stable"), start("b"), start("c", "stable"), call("b"), score("b"))
    assert [one.key for one in window.chunks[0].trajectories] == [key_of(name) for name in "abc"]
    assert [one.outcome for one in window.chunks[0].trajectories] == [PENDING, SUCCESS, PENDING]
    assert (window.pending, window.stable.started, window.canary.trajectories) == (2, 2, 1)


def test_a_trajectory_without_a_start_is_in_no_statistic() -> None:
    window = folded(call("a"), score("a"))
    assert (window.chunks, window.canary.calls) == ([], 0)


def test_canary_trajectories_without_a_start_count_by_first_calls() -> None:
    window = folded(
        start("a"),
        *(call("a"), call("a", first=False)),
        *(call("b"), call("b", first=False), call("c")),
        *(call("d", "stable"), call("e", "pinned"), call("f", version=7)),
    )
    assert (window.canary.unannounced, window.stable.unannounced) == (2, 0)


def test_first_calls_count_the_share_that_met_the_bundle() -> None:
    window = folded(start("a"), call("a"), call("a", unapplied=True), start("b"), call("b", unapplied=True))
    assert (window.canary.applied, window.stable.applied) == (0.5, None)


@pytest.mark.parametrize(
    "left_out",
    [
        start("a", "pinned"),
        start("a", "mixed"),
        start("a", weight=0.0),
        start("a", weight=1.0),
        start("a", weight=0.26),
        start("a", version=7),
        start("a", "stable", version=2),
        start("a", rollout_id="another"),
        start("a", rollout_id=None),
    ],
    ids=[
        "pinned",
        "mixed",
        "no canary",
        "all canary",
        "no stage's weight",
        "other policy",
        "wrong arm",
        "other rollout",
        "no rollout",
    ],
)
def test_a_start_of_another_rollout_policy_or_weight_is_left_out(left_out: Started) -> None:
    assert folded(left_out, call("a"), score("a")).chunks == []


def test_starts_beyond_the_limit_are_in_no_statistic_until_room_is_back() -> None:
    window = Window(most_open=2 * BLOCK)
    folded(*(start(f"t{number}") for number in range(3 * BLOCK)), window=window)
    assert (len(window.chunks), window.canary.started) == (2, 2 * BLOCK)
    settling = [event for number in range(BLOCK) for event in (call(f"t{number}"), score(f"t{number}"))]
    folded(*settling, window=window)
    assert (len(list(window.close())), len(list(window.close_complaints(RULES)))) == (1, 0)
    later = [start(f"later {number}", at=50.0) for number in range(3 * BLOCK)]
    folded(*later, window=window)
    assert window.canary.started == 2 * BLOCK, "they may still be complained of"
    folded(window=window, as_of=101.0)
    assert (len(list(window.close())), len(list(window.close_complaints(RULES)))) == (1, 2)
    folded(*later, window=window)
    assert (len(window.chunks), window.canary.started) == (4, 4 * BLOCK)


def test_start_announced_twice_counts_at_its_first_alone() -> None:
    window = folded(start("a", terms=Terms(0.3)), start("b"), start("a", "stable"), call("a"), score("a"))
    folded(start("a"), window=window)
    assert window.canary.started == 2
    assert window.chunks[0].trajectories[0].terms == 0
    assert window.chunks[0].terms[0] == Terms(0.3)


def test_an_outcome_settles_once_and_later_revisions_change_nothing() -> None:
    window = folded(start("a"), call("a"), score("a", success=False), score("a", at=11.0, success=True))
    assert (known(window, "a").outcome, known(window, "a").reward) == (FAILED, 0.0)
    assert (window.canary.failures, window.canary.reward_total) == (1, 0.0)


def test_revision_without_outcome_leaves_it_open_and_next_one_settles_it() -> None:
    window = folded(start("a"), call("a"), score("a", success=None, reward=0.4))
    assert known(window, "a").outcome == PENDING
    folded(score("a", at=20.0), window=window)
    assert (known(window, "a").outcome, known(window, "a").reward) == (SUCCESS, 0.8)


def test_outcome_is_missing_at_the_horizon_and_an_absent_first_call_harm() -> None:
    window = folded(start("a"), start("b"), call("b"), score("b", success=None, reward=0.4), as_of=100.0)
    assert known(window, "a").outcome == PENDING
    folded(as_of=100.5, window=window)
    assert (known(window, "a").outcome, known(window, "a").first, known(window, "a").reward) == (MISSING, 1, None)
    assert (known(window, "b").outcome, known(window, "b").first, known(window, "b").reward) == (MISSING, 0, 0.4)
    folded(score("a", at=101.0), call("a", at=101.0), window=window)
    assert (known(window, "a").outcome, known(window, "a").first) == (MISSING, 1)
    assert (window.canary.missing, window.canary.failures) == (2, 0)


def test_an_outcome_beyond_the_horizon_is_missing_however_late_it_is_read() -> None:
    window = folded(start("a"), call("a"), score("a", at=100.5), as_of=101.0)
    assert known(window, "a").outcome == MISSING


def test_a_reward_within_the_horizon_counts_although_it_is_read_after_it() -> None:
    window = folded(start("a"), call("a"), score("a", at=99.0), as_of=5000.0)
    assert known(window, "a").outcome == SUCCESS


def behind(window: Window, as_of: float, read_until: float, *events: Event) -> Window:
    """The window after a batch in which the reward computer has got to `as_of` only."""
    window.fold(Batch(events, as_of, read_until), PAIR, RULES)
    return window


def test_no_outcome_is_missing_while_the_reward_computer_is_away() -> None:
    window = behind(folded(start("a"), call("a")), 90.0, 150.0)
    assert known(window, "a").outcome == PENDING
    behind(window, 160.0, 160.0, score("a", at=95.0))
    assert known(window, "a").outcome == SUCCESS


def test_outcome_after_the_horizon_is_missing_whatever_was_away() -> None:
    window = behind(folded(start("a"), call("a")), 90.0, 150.0)
    behind(window, 160.0, 160.0, score("a", at=120.0))
    assert known(window, "a").outcome == MISSING


def test_outcome_without_a_score_for_too_long_is_worst_for_every_claim() -> None:
    window = behind(folded(start("a"), call("a"), start("b", "stable")), 90.0, 201.0)
    assert [known(window, name).outcome for name in "ab"] == [UNSCORED, UNSCORED]
    assert (known(window, "b").first, window.canary.unscored, window.canary.trajectories) == (1, 1, 0)
    behind(window, 210.0, 210.0, score("a", at=95.0))
    cohort = cohort_of(window.chunks[0])
    assert (for_rollback(cohort, MISSED).tolist(), for_promotion(cohort, FAILURE).tolist()) == ([0, 1], [1, 0])


def test_reward_counts_from_the_time_at_which_its_trajectory_was_reported() -> None:
    reward = reward_of("a", success=True, reported_at=START)
    assert score_of(reward, START.timestamp() + 500).at == START.timestamp()
    assert score_of(reward, START.timestamp() - 5).at == START.timestamp() - 5
    assert score_of(reward_of("a", success=True), 7.0).at == 7.0


@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_trajectory_that_falls_back_is_at_once_a_failure_of_its_arm(arm: str) -> None:
    window = folded(start("a", arm), call("a", arm), failing("a", arm, first=False), answered("a"))
    assert (known(window, "a").outcome, known(window, "a").reward, known(window, "a").first) == (FAILED, 0.0, 0)
    before = (window.arm(arm == "canary").failures, window.arm(arm == "canary").violations)
    folded(score("a", violation=True), answered("a"), failing("a"), window=window, as_of=1000.0)
    assert (window.arm(arm == "canary").failures, window.arm(arm == "canary").violations) == before == (1, 0)


def test_failed_call_after_which_same_arm_went_on_leaves_outcome_to_reward() -> None:
    went_on = answered("a", "canary", began=3.0)
    window = folded(start("a"), failing("a"), went_on, score("a"), answered("a", began=9.0))
    assert (known(window, "a").outcome, known(window, "a").first) == (SUCCESS, 1)


@pytest.mark.parametrize("index", [0, 1], ids=["as if it began", "in flight"])
def test_canary_trajectory_that_another_gateway_gave_to_stable_was_moved(index: int) -> None:
    """A gateway that was restarted without a lease remembers no arm: its turns say stable, maybe of index 0 again."""
    went_on = replace(call("a", "stable"), first=index == 0)
    window = folded(start("a"), call("a"), went_on, score("a"))
    assert known(window, "a").outcome == MOVED
    assert (window.stable.calls, window.canary.calls) == (0, 1)


@pytest.mark.parametrize("first", [False, True], ids=["in flight", "before its first call"])
def test_a_trajectory_that_a_lapsed_lease_moved_stays_and_is_done(first: bool) -> None:
    calls = () if first else (call("a"),)
    window = folded(start("a"), *calls, answered("a"), score("a"))
    one = known(window, "a")
    assert (one.outcome, one.done, one.reward) == (MOVED, True, None)
    assert (window.canary.moved, window.canary.trajectories) == (1, 0)
    folded(as_of=1000.0, window=window)
    assert one.outcome == MOVED


def test_first_call_settles_with_its_first_turn_and_failures_are_one_draw() -> None:
    window = folded(start("a"), failing("a"), failing("a", began=3.0), failing("a", began=5.0))
    assert (known(window, "a").first, window.canary.errors) == (1, 3)
    window = folded(start("b"), call("b"), failing("b", began=3.0), window=window)
    assert known(window, "b").first == 0


def test_cancelled_call_is_a_harm_of_the_first_call_and_a_hanging_latency() -> None:
    window = folded(start("a"), call("a", latency_ms=None, hung=True), score("a"))
    one = known(window, "a")
    assert (one.first, one.hung, one.calls, window.canary.hung) == (1, True, 0, 1)


def test_calls_after_the_outcome_change_no_latency() -> None:
    window = folded(start("a"), call("a"), score("a"), call("a", at=50.0, first=False, latency_ms=9000.0))
    assert known(window, "a").latency_ms == 10.0


def test_violations_of_settled_trajectories_count_once_and_change_no_test() -> None:
    window = folded(start("a"), call("a"), score("a"))
    folded(score("a", at=50.0, violation=True), window=window)
    folded(score("a", at=60.0, violation=True), window=window)
    assert window.canary.violations == 1
    assert not known(window, "a").violation


def test_a_role_without_outcomes_settles_with_its_first_reward() -> None:
    rules = quick_rules(horizon_s=100.0, roles_without_outcomes=frozenset({"x"})).for_role("x")
    window = folded(start("a"), call("a"), score("a", success=None, reward=0.7), rules=rules)
    assert (known(window, "a").outcome, known(window, "a").reward) == (SUCCESS, 0.7)


def test_full_blocks_are_closed_in_order_once_nothing_in_them_is_pending() -> None:
    names = [str(number) for number in range(300)]
    window = folded(*[start(name) for name in names], *[call(name) for name in names])
    folded(*[score(name) for name in names if name != "5"], window=window)
    assert list(window.close()) == []
    folded(score("5"), window=window)
    assert [chunk.number for chunk in window.close()] == [0, 1]
    assert (window.closed, len(window.open)) == (2, 1)
    assert list(window.close()) == []


def test_closed_blocks_are_remembered_up_to_a_bound() -> None:
    names = [str(number) for number in range(128 * 5)]
    events = [event for name in names for event in (start(name), call(name), score(name))]
    window = folded(*events)
    assert [chunk.number for chunk in window.close()] == [0, 1, 2, 3, 4]
    window.forget(300)
    assert len(window.chunks) == 5, "they may still be complained of"
    folded(window=window, as_of=101.0)
    assert [chunk.number for chunk in window.close_complaints(RULES)] == [0, 1, 2, 3, 4]
    window.forget(300)
    assert [chunk.number for chunk in window.chunks] == [3, 4]
    folded(start("0"), window=window)
    assert window.chunks[-1].number == 5


def test_turns_rewards_and_starts_become_events_of_the_fold() -> None:
    turn = turn_of("t", "canary", 2, 0.25, error="engine away", latency_ms=5.0)
    began = turn.timestamp.timestamp()
    assert call_of(turn.header_summary, 7.0) == Call(
        "t", 7.0, True, "canary", 2, True, None, False, began, began + 0.005, cost_usd=0.0
    )
    gone = call_of(turn_of("t", "canary", 2, 0.25, finish_reason="cancelled", latency_ms=5.0).header_summary, 7.0)
    assert (gone.hung, gone.latency_ms, gone.error) == (True, None, False)
    reward = reward_of("t", success=True, total=1.7)
    assert score_of(reward, 7.0) == Score("t", 7.0, success=True, reward=1.0, violation=False)
    centres = {"reward": 0.2, "another": 0.9}
    announced = start_of("t", "canary", 2, 0.25, Route(role="support"), centres=centres, latency_scale_ms=300.0)
    read = started_of(announced, 7.0)
    assert read == Started("t", 7.0, "canary", 2, 0.25, None, Terms(reward=0.2, scale_ms=300.0))


def test_unknown_or_inapplicable_task_completion_is_an_unknown_outcome() -> None:
    part = RewardComponent(score=1.0, weight=0.4, source="automated", applicable=False)
    assert score_of(reward_of("t", success=True, reward_components={"task_completion": part}), 0.0).success is None
    assert score_of(reward_of("t", success=True, reward_components={}), 0.0).success is None


def test_safety_is_read_from_the_components() -> None:
    parts = {
        "task_completion": RewardComponent(score=1.0, weight=0.4, source="automated"),
        "safety": RewardComponent(score=0.0, weight=0.1, source="automated"),
    }
    assert score_of(reward_of("t", success=True, reward_components=parts), 0.0).violation
