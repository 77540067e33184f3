"""Which trajectories count, as what, and that none counts twice."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.canary_deployer.domain.outcomes import (
    KEEP_EARLY,
    MAX_PENDING,
    Call,
    Compared,
    Score,
    Watch,
    call_of,
    expire,
    fold,
    overdue,
    score_of,
)
from ratchet.messages.reward import RewardComponent
from tests.support.canary_world import quick_rules, reward_of, turn_of

RULES = quick_rules(horizon_s=100.0)
PAIR = Compared(stable_version=1, canary_version=2)


def call(name: str, arm: str = "canary", at: float = 0.0, **changes: object) -> Call:
    version = 2 if arm == "canary" else 1
    plain = Call(name, at, first=True, arm=arm, version=version, weight=0.25, error=False, latency_ms=10.0)
    return replace(plain, **changes)


def score(name: str, at: float = 10.0, failed: bool = False, **changes: object) -> Score:
    plain = Score(name, at, revision=0, failed=failed, reward=0.0 if failed else 0.8, negative=None, violation=False)
    return replace(plain, **changes)


def folded(*messages: Call | Score, watch: Watch | None = None) -> Watch:
    return fold(watch or Watch(), messages, PAIR, RULES)


def finished(watch: Watch) -> tuple[int, int]:
    return watch.statistics.stable.trajectories, watch.statistics.canary.trajectories


def test_a_trajectory_finishes_with_its_first_reward():
    watch = folded(call("a"), call("b", "stable"), score("a"), score("b", failed=True))
    assert finished(watch) == (1, 1)
    assert (watch.statistics.stable.failures, watch.statistics.canary.failures) == (1, 0)
    assert watch.pending == {}


def test_a_reward_that_comes_twice_counts_once():
    assert finished(folded(call("a"), score("a"), score("a"), call("a", first=True))) == (0, 1)


def test_a_later_revision_is_no_outcome():
    assert finished(folded(call("a"), score("a", revision=1))) == (0, 0)


@pytest.mark.parametrize(
    "left_out",
    [
        call("a", "pinned"),
        call("a", "mixed"),
        call("a", weight=0.0),
        call("a", weight=1.0),
        call("a", version=7),
        call("a", "stable", version=2),
        call("a", first=False),
    ],
    ids=["pinned", "mixed", "before the rollout", "all canary", "other policy", "wrong arm", "begun before"],
)
def test_other_trajectories_are_left_out_for_good(left_out: Call):
    watch = folded(left_out, score("a"), call("a"), score("a"))
    assert finished(watch) == (0, 0)
    assert watch.pending == watch.early == {}


def test_a_trajectory_whose_arm_changes_in_flight_leaves_the_statistics():
    watch = folded(call("a"), call("a", "mixed", first=False), score("a"))
    assert finished(watch) == (0, 0)
    assert watch.statistics.mixed == 1


def failing(name: str, arm: str = "canary", began: float = 1.0, first: bool = True) -> Call:
    """A call that takes a second to fail."""
    return call(name, arm, error=True, latency_ms=None, began=began, ended=began + 1.0, first=first)


def answered(name: str, arm: str = "mixed", began: float = 1.0) -> Call:
    """A later call, of another arm unless one is named."""
    return call(name, arm, first=False, began=began, ended=began + 1.0)


@pytest.mark.parametrize("arm", ["stable", "canary"])
def test_a_trajectory_that_another_answers_because_its_arm_failed_is_a_failure_of_that_arm(arm: str):
    watch = folded(call("a", arm), failing("a", arm, first=False), answered("a"))
    counts = watch.statistics.arm(arm == "canary")
    assert (counts.trajectories, counts.failures, counts.reward_total, counts.timed_out) == (1, 1, 0.0, 0)
    assert (counts.calls, counts.errors, watch.statistics.mixed) == (2, 1, 0)
    assert sum(finished(watch)) == 1
    assert watch.pending == {}


def test_nothing_that_comes_later_changes_what_a_fallback_has_decided():
    decided = folded(failing("a"), answered("a"))
    later = [answered("a"), failing("a"), call("a"), score("a", negative=True, violation=True), score("a", revision=1)]
    watch = expire(folded(*later, *later, watch=decided), 1000.0, PAIR, RULES)
    assert watch.statistics == decided.statistics
    assert watch.early == watch.pending == {}


def test_a_reward_that_is_read_before_a_call_that_failed_waits_for_what_became_of_it():
    began = folded(score("a"), failing("a"))
    assert finished(began) == (0, 0)
    assert folded(answered("a"), watch=began).statistics.canary.failures == 1
    assert folded(answered("a", "canary", began=3.0), watch=began).statistics.canary.reward_total == 0.8
    waited = expire(began, 101.0, PAIR, RULES)
    assert (waited.statistics.canary.reward_total, waited.statistics.canary.timed_out) == (0.8, 0)
    assert waited.early == waited.pending == {}


def test_a_failed_call_that_the_same_arm_makes_good_counts_by_its_reward():
    watch = folded(failing("a"), answered("a", "canary", began=3.0), score("a"))
    assert (finished(watch), watch.statistics.canary.failures) == ((0, 1), 0)


def test_a_lapse_or_rollback_after_a_failure_that_the_arm_made_good_leaves_the_trajectory_out():
    twice = [failing("a"), answered("a", "canary", began=3.0), failing("a")]
    watch = folded(*twice, answered("a", began=5.0), score("a"))
    assert (finished(watch), watch.statistics.mixed) == ((0, 0), 1)


def test_a_call_beside_the_one_that_failed_does_not_make_it_good():
    watch = folded(failing("a"), answered("a", "canary", began=1.5), answered("a"))
    assert watch.statistics.canary.failures == 1


def test_a_call_whose_agent_went_away_is_no_failure():
    watch = folded(call("a", latency_ms=None), answered("a", began=5.0), score("a"))
    assert (finished(watch), watch.statistics.mixed) == ((0, 0), 1)


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=12), st.data())
def test_calls_that_come_twice_and_a_restart_change_no_outcome(again: list[str], data: st.DataObject):
    stories: dict[str, list[Call | Score]] = {
        "a": [call("a"), failing("a", first=False), answered("a"), score("a")],
        "b": [failing("b", "stable"), answered("b"), answered("b", began=4.0), score("b")],
        "c": [failing("c"), answered("c", "canary", began=3.0), answered("c", "canary", began=5.0), score("c")],
    }
    plain = folded(*(message for story in stories.values() for message in story))
    messages = [message for story in stories.values() for message in story]
    for name in again:
        place = data.draw(st.integers(0, len(stories[name]) - 1))
        copy = stories[name][place]
        messages.insert(data.draw(st.integers(messages.index(copy) + 1, len(messages))), copy)
    cut = data.draw(st.integers(0, len(messages)))
    stored = msgspec.json.decode(msgspec.json.encode(folded(*messages[:cut])), type=Watch)
    watch = folded(*messages[cut:], watch=stored)
    assert watch.statistics.tests == plain.statistics.tests
    assert (finished(watch), watch.statistics.mixed) == ((1, 2), 0)
    assert watch.pending == {}


def test_a_record_from_before_failed_calls_were_noted_is_read():
    plain = folded(call("a", at=7.0))
    stored = msgspec.json.encode(plain).replace(b",null,0.0]", b"]")
    assert b"null" not in stored.partition(b'"pending":')[2].partition(b"}")[0]
    (pending,) = msgspec.json.decode(stored, type=Watch).pending.values()
    assert (pending.since, pending.broken) == (7.0, False)


def test_the_weight_of_the_first_call_is_the_propensity():
    watch = folded(call("a", weight=0.1), call("a", first=False, weight=0.5))
    (pending,) = watch.pending.values()
    assert pending.weight == 0.1


def test_no_outcome_within_the_horizon_is_a_failure():
    watch = folded(call("a", at=0.0), call("b", "stable", at=50.0))
    assert not overdue(watch, 100.0, RULES)
    assert overdue(watch, 101.0, RULES)
    late = expire(watch, 101.0, PAIR, RULES)
    assert late.statistics.canary.timed_out == late.statistics.canary.failures == 1
    assert finished(late) == (0, 1)
    assert finished(folded(score("a", at=102.0), watch=late)) == (0, 1)


def test_a_reward_after_the_horizon_is_too_late_even_if_nobody_looked():
    watch = folded(call("a", at=0.0), score("a", at=200.0))
    assert watch.statistics.canary.timed_out == 1
    assert watch.statistics.canary.reward_total == 0.0


def test_a_reward_that_is_read_before_its_call_waits_for_it():
    watch = folded(score("a", negative=True), call("a"))
    assert finished(watch) == (0, 1)
    assert watch.statistics.canary.negative == 1
    assert watch.early == {}


def test_rewards_of_strangers_do_not_pile_up():
    watch = folded(*(score(f"stranger {n}") for n in range(3 * KEEP_EARLY)))
    assert len(watch.early) == KEEP_EARLY
    assert folded(score("later", at=1000.0), watch=watch).early.keys() == {next(reversed(folded(score("later")).early))}


def test_no_more_trajectories_are_watched_at_a_time_than_the_record_can_hold():
    watch = folded(*(call(f"t{n}") for n in range(MAX_PENDING + 3)), score("t0"), call("late"), score("late"))
    assert len(watch.pending) == MAX_PENDING - 1
    assert finished(watch) == (0, 2)
    rules = quick_rules(keep_seen=2000)
    at, ended = 1767614400.123456, 1767614401.654321
    tries = ((n, error) for n in range(MAX_PENDING) for error in (False, True))
    calls = [call(f"t{n}", at=at, error=error, began=at, ended=ended) for n, error in tries]
    full = fold(Watch(), calls, PAIR, rules)
    assert len(msgspec.json.encode(full)) < 512 * 1024


def test_memory_of_finished_trajectories_is_bounded():
    rules = quick_rules(keep_seen=100)
    messages = [m for n in range(300) for m in (call(f"t{n}"), score(f"t{n}", negative=False))]
    watch = fold(Watch(), messages, PAIR, rules)
    assert (len(watch.seen), len(watch.rated)) == (100, 100)
    assert watch.statistics.canary.trajectories == 300


def test_errors_are_counted_per_call_and_only_good_calls_have_a_latency():
    watch = folded(call("a"), call("a", first=False, error=True, latency_ms=None), score("a"))
    assert (watch.statistics.canary.calls, watch.statistics.canary.errors) == (2, 1)
    assert watch.statistics.latency.mean == 10.0


def test_feedback_of_a_later_revision_replaces_the_earlier_one():
    watch = folded(call("a"), score("a", negative=True))
    assert (watch.statistics.canary.rated, watch.statistics.canary.negative) == (1, 1)
    watch = folded(score("a", revision=1, negative=False), watch=watch)
    assert (watch.statistics.canary.rated, watch.statistics.canary.negative) == (1, 0)


def test_a_safety_violation_is_counted_once():
    watch = folded(call("a"), score("a", violation=True), score("a", revision=1, violation=True))
    assert watch.statistics.canary.violations == 1


@given(st.lists(st.integers(0, 19), max_size=60), st.integers(0, 60))
def test_folding_in_two_parts_equals_folding_at_once(names: list[int], cut: int):
    messages: list[Call | Score] = []
    for place, name in enumerate(names):
        arm = "canary" if name % 2 else "stable"
        messages.append(score(str(name), at=place) if place % 3 else call(str(name), arm, at=place))
    once = folded(*messages)
    assert folded(*messages[cut:], watch=folded(*messages[:cut])) == once
    assert msgspec.json.decode(msgspec.json.encode(once), type=Watch) == once


def test_messages_are_read_as_the_fold_sees_them():
    turn = turn_of("t", "canary", 2, 0.25, error="engine away", latency_ms=5.0)
    began = turn.timestamp.timestamp()
    assert call_of(turn, 7.0) == Call("t", 7.0, True, "canary", 2, 0.25, True, None, began, began + 0.005)
    reward = reward_of("t", success=True, total=1.7)
    assert score_of(reward, 7.0) == Score("t", 7.0, 0, failed=False, reward=1.0, negative=None, violation=False)


def test_unknown_or_inapplicable_task_completion_is_a_failure():
    part = RewardComponent(score=1.0, weight=0.4, source="automated", applicable=False)
    assert score_of(reward_of("t", success=True, reward_components={"task_completion": part}), 0.0).failed
    assert score_of(reward_of("t", success=True, reward_components={}), 0.0).failed


def test_feedback_and_safety_are_read_from_the_components():
    parts = {
        "task_completion": RewardComponent(score=1.0, weight=0.4, source="automated"),
        "user_feedback": RewardComponent(score=0.0, weight=0.25, source="human"),
        "safety": RewardComponent(score=0.0, weight=0.1, source="automated"),
    }
    read = score_of(reward_of("t", success=True, reward_components=parts), 0.0)
    assert (read.negative, read.violation) == (True, True)


def test_a_trajectory_that_another_policy_goes_on_with_is_nobodys_doing_whatever_arm_is_claimed():
    elsewhere = call("a", "stable", weight=0.0)
    watch = folded(call("a"), elsewhere, score("a"))
    assert (finished(watch), watch.statistics.mixed) == ((0, 0), 1)
    assert watch.statistics.canary.calls == 1
