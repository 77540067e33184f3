"""What no weights can make of a reward: it stays in 0..1, success beats failure, and giving up early never pays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace

from ratchet.core.contract import Feedback, Outcome, Reward, Trajectory
from ratchet.core.contract.reward import JUDGEMENT, JudgeRef
from ratchet.core.judging.calibration import Calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.reward_computer.components import COMPONENTS, Evidence
from ratchet.reward_computer.domain.normalization import Stats
from ratchet.reward_computer.domain.reward import Circumstances, RewardSpec, reward_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, feedback
from tests.unit.reward_computer.test_reward_components import turns
from tests.unit.reward_computer.test_reward_function import dense, opinions, outcomes, qualities, rewarded_turn

JUDGE = JudgeProfile("big")
ROUNDING = 1e-9

unit = st.floats(0, 1)
weightings = st.dictionaries(st.sampled_from(sorted(COMPONENTS)), unit, min_size=1, max_size=len(COMPONENTS))
calibrations = st.sampled_from([{}, {JUDGE.digest: Calibration(labels=60, agreed=55, kappa=0.8, low=0.6, high=0.9)}])
calls = st.integers(1, 40)
histories = st.builds(Stats, st.integers(0, 100), st.floats(1, 40), st.floats(0, 9))
SOME_PAST = Stats(50, 10.0, 2.0)
costs = st.floats(0, 1e6)
seconds = st.floats(0, 1e6)
completions = st.one_of(
    st.just(Outcome(status="failure")),
    st.just(Outcome(status="success")),
    st.builds(lambda percent: Outcome(status="partial", completion_percentage=percent), st.floats(0, 100)),
)


def judged(score: float) -> Feedback:
    ref = JudgeRef(digest=JUDGE.digest, rubric_digest=JUDGE.rubric_digest, model="big")
    return feedback(99, kind=JUDGEMENT, value=score, judge=ref)


def spec_of(weights: Mapping[str, float], **changes: Any) -> RewardSpec:
    return RewardSpec(function=FUNCTION, weights={"default": weights}, judges={"default": JUDGE}, **changes)


def played(outcome: Outcome | None, number: int = 3, usd: float = 0.0, took_s: float = 1.0, **more: Any) -> Trajectory:
    plain = trajectory(outcome=outcome, turns=turns(number), end_timestamp=AT + timedelta(seconds=took_s), **more)
    return replace(plain, metadata=replace(plain.metadata, total_cost_usd=usd))


def reward(spec: RewardSpec, played: Trajectory, given: Any = (), history: Stats = SOME_PAST) -> Reward:
    return reward_of(spec, Evidence(played, given, history), Circumstances(AT))


@given(weightings, calibrations, outcomes, qualities, opinions, st.none() | unit, dense, histories)
def test_total_and_confidence_stay_in_range_and_turns_sum_to_the_total(
    weights: Any, known: Any, outcome: Any, quality: Any, given_by: Any, score: Any, of_turns: Any, history: Any
) -> None:
    entries = [rewarded_turn(turn, value) for turn, value in zip(turns(len(of_turns)), of_turns, strict=True)]
    ended = trajectory(outcome=outcome, quality=quality, turns=entries, labels={"scores": {"safety": 0.5}})
    heard = [*given_by, *([] if score is None else [judged(score)])]
    made = reward(spec_of(weights, calibrations=known), ended, heard, history)
    parts = made.reward_components.values()
    assert 0.0 <= made.total_reward <= 1.0
    assert 0.0 <= (made.metadata.confidence or 0.0) <= 1.0
    assert made.total_reward == pytest.approx(math.fsum(part.weight * part.score for part in parts))
    assert all(math.isfinite(part.normalized or 0.0) for part in parts)
    assert known or "judge" not in weights or made.reward_components["judge"].weight == 0.0
    dense_total = math.fsum(turn.reward for turn in made.turn_rewards or ())
    assert dense_total == pytest.approx(made.total_reward, abs=1e-9)


@given(weightings, qualities, opinions, st.tuples(calls, costs, seconds), st.tuples(calls, costs, seconds), histories)
def test_success_beats_failure_whatever_it_took(
    weights: Any, quality: Any, given_by: Any, dear: Any, cheap: Any, history: Stats
) -> None:
    assume(weights.get("task_completion", 0.0) > 0.001 or weights.get("cost_latency", 0.0) > 0.001)
    spec = spec_of(weights)
    success = reward(spec, played(Outcome(status="success"), *dear, quality=quality), given_by, history)
    failure = reward(spec, played(Outcome(status="failure"), *cheap, quality=quality), given_by, history)
    assert success.total_reward > failure.total_reward


@given(weightings, qualities, opinions, completions, completions, calls, calls, histories)
def test_giving_up_early_never_pays(
    weights: Any, quality: Any, given_by: Any, one: Outcome, other: Outcome, few: int, many: int, history: Stats
) -> None:
    """Who stops with less of the task done never gets more than who goes on, however many calls that takes."""
    weights = {name: weight for name, weight in weights.items() if name != "cost_latency"}
    spec, less, more = spec_of(weights or {"task_completion": 1.0}), *sorted((one, other), key=done)
    assume(done(less) < done(more))
    stopped = reward(spec, played(less, min(few, many), quality=quality), given_by, history)
    went_on = reward(spec, played(more, max(few, many), quality=quality), given_by, history)
    assert stopped.total_reward <= went_on.total_reward + ROUNDING


@given(weightings, qualities, completions, calls, calls, costs, costs, histories)
def test_giving_up_never_pays_more_than_the_whole_task(
    weights: Any, quality: Any, given_up: Outcome, few: int, many: int, cheap: float, dear: float, history: Stats
) -> None:
    """Also where cost and time count: they move no reward past that of a success."""
    spec = spec_of(weights)
    assume(done(given_up) < 1.0)
    stopped = reward(spec, played(given_up, few, cheap, 0.0, quality=quality), (), history)
    finished = reward(spec, played(Outcome(status="success"), many, dear, 1e5, quality=quality), (), history)
    assert stopped.total_reward <= finished.total_reward + ROUNDING


@given(weightings, outcomes, calls, st.lists(st.booleans(), max_size=4))
def test_better_opinion_never_lowers_a_reward(weights: Any, outcome: Any, number: int, thumbs: list[bool]) -> None:
    given_by = [feedback(place, value=up) for place, up in enumerate(thumbs)]
    better = [feedback(place, value=True) for place, _ in enumerate(thumbs)]
    spec, ended = spec_of(weights), played(outcome, number)
    assert reward(spec, ended, given_by).total_reward <= reward(spec, ended, better).total_reward + ROUNDING


def done(outcome: Outcome) -> float:
    """How far the task was done, as components see it."""
    return Evidence(trajectory(outcome=outcome)).completion or 0.0
