"""The formulas of the reward components, case by case."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract import Outcome
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    Quality,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.rules.effort import model_calls
from ratchet.reward_computer.components import COMPONENTS, Assessment, Evidence
from ratchet.reward_computer.components.efficiency import standard_score
from ratchet.reward_computer.domain.normalization import NOTHING_YET, Stats
from tests.support.messages import AT, trajectory
from tests.support.rewards import feedback


def turns(count: int, worked: bool = True) -> list[TrajectoryTurn]:
    return [
        TrajectoryTurn(
            turn_id=number,
            timestamp=AT,
            observation=Observation(type="user_message", content="x"),
            action=Action(type="tool_call", tool_name="f"),
            result=TurnResult(success=worked),
        )
        for number in range(1, count + 1)
    ]


def assess(name: str, feedback: Any = (), history: Stats = NOTHING_YET, **changes: Any) -> Assessment | None:
    return COMPONENTS[name](Evidence(trajectory(**changes), feedback, history))


def score(name: str, **changes: Any) -> float | None:
    assessment = assess(name, **changes)
    return None if assessment is None else assessment.score


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(status="success"), 1.0),
        (Outcome(status="success", completion_percentage=10), 1.0),
        (Outcome(status="partial"), 0.5),
        (Outcome(status="partial", completion_percentage=0), 0.5),
        (Outcome(status="partial", completion_percentage=60), 0.8),
        (Outcome(status="partial", completion_percentage=100), 1.0),
        (Outcome(status="failure", completion_percentage=90), 0.0),
        (Outcome(status="a status of the future"), 0.0),
        (None, None),
    ],
)
def test_task_completion(outcome: Outcome | None, expected: float | None) -> None:
    assert score("task_completion", outcome=outcome) == expected


def test_a_claim_is_trusted_less_than_a_check() -> None:
    claimed = assess("task_completion", outcome=Outcome(status="success"))
    checked = assess("task_completion", outcome=Outcome(status="success", verified_by="human"))
    assert claimed is not None
    assert checked is not None
    assert (claimed.confidence, checked.confidence) == (0.5, 1.0)
    assert (claimed.source, checked.source) == ("automated", "human")
    assert "own claim" in claimed.reasoning


@pytest.mark.parametrize(
    ("calls", "expected"),
    [(10, 0.5), (8, 0.75), (6, 1.0), (2, 1.0), (12, 0.25), (14, 0.0), (40, 0.0)],
)
def test_efficiency_is_the_clipped_standard_score_of_fewer_calls(calls: int, expected: float) -> None:
    assert score("efficiency", turns=turns(calls), history=Stats(50, 10.0, 2.0, 5, 20)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("history", "calls", "reason"),
    [
        (Stats(), 1, "1 model call, the first run of its kind"),
        (Stats(50, 10.0, 2.0, 5, 20), 3, "3 model calls, 10.0 +- 2.0 over 50 runs before"),
    ],
)
def test_efficiency_names_what_it_compares_with(history: Stats, calls: int, reason: str) -> None:
    assessment = assess("efficiency", turns=turns(calls), history=history)
    assert assessment is not None
    assert assessment.reasoning == reason


def test_efficiency_is_worth_nothing_unless_the_task_was_done() -> None:
    history = Stats(50, 10.0, 2.0, 5, 20)
    failure, most = Outcome(status="failure"), Outcome(status="partial", completion_percentage=99)
    assert score("efficiency", turns=turns(2), history=history, outcome=failure) == 0.0
    assert score("efficiency", turns=turns(2), history=history, outcome=most) == 0.0
    assert score("efficiency", turns=turns(2), history=history, outcome=None) is None


@pytest.mark.parametrize(
    ("history", "calls", "z"),
    [
        (Stats(), 3, 0.0),
        (Stats(4, 10.0, 2.0, 8, 12), 1, 0.0),
        (Stats(5, 10.0, 2.0, 8, 12), 1, 2.0),
        (Stats(50, 10.0, 0.0, 10, 10), 10, 0.0),
        (Stats(50, 10.0, 0.0, 10, 10), 9, 2.0),
        (Stats(50, 10.0, 0.0, 10, 10), 11, -2.0),
    ],
)
def test_cold_start_and_zero_variance_of_the_history_are_defined(history: Stats, calls: int, z: float) -> None:
    assert standard_score(calls, history) == z


def test_parallel_tool_calls_are_one_model_call() -> None:
    first, second, third = turns(3)
    same = [
        TrajectoryTurn(**{name: getattr(turn, name) for name in turn.__struct_fields__} | {"turn_ref": "a"})
        for turn in (first, second)
    ]
    assert model_calls(trajectory(turns=[*same, third])) == 2


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        (Quality(lint_score=8), 0.8),
        (Quality(tests_passed=3, tests_total=4), 0.75),
        (Quality(critical_issues=1), 0.5),
        (Quality(critical_issues=5), 0.0),
        (Quality(lint_score=10, tests_passed=0, tests_total=4, critical_issues=1), 0.5),
        (Quality(tests_total=0), None),
        (Quality(tests_total=2), 0.0),
        (Quality(), None),
        (None, None),
    ],
)
def test_code_quality_is_the_mean_of_what_was_measured(quality: Quality | None, expected: float | None) -> None:
    assert score("code_quality", quality=quality) == (None if expected is None else pytest.approx(expected))


def test_code_quality_names_its_source() -> None:
    qualities = [
        Quality(lint_score=8),
        Quality(tests_passed=1, tests_total=1),
        Quality(lint_score=8, critical_issues=0),
    ]
    sources = [assessment.source for quality in qualities if (assessment := assess("code_quality", quality=quality))]
    assert sources == ["linter", "test_results", "automated"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("thumbs", True, 1.0),
        ("thumbs", False, 0.0),
        ("rating", 4, 0.8),
        ("rating", 0, 0.0),
        ("correction", "it was blue", 0.2),
        ("abandoned", None, 0.0),
        ("comment", "nice", None),
        ("metric", 0.3, None),
        ("outcome_evaluation", 0.7, 0.7),
        ("efficiency", 0.7, None),
        ("error_analysis", "it refunded before it looked at the date", None),
        ("a kind of the future", 1, None),
    ],
)
def test_user_feedback_by_kind(kind: str, value: Any, expected: float | None) -> None:
    assert score("user_feedback", feedback=[feedback(kind=kind, value=value)]) == expected


def test_without_feedback_there_is_no_assessment() -> None:
    assert assess("user_feedback") is None


def test_the_newest_opinion_of_a_rater_counts_and_raters_count_alike() -> None:
    opinions = [
        feedback(3, value=True, rater="ann"),
        feedback(1, value=False, rater="ann"),
        feedback(2, kind="rating", value=2, rater="bob"),
        feedback(4, kind="comment", value="changed my mind", rater="bob"),
    ]
    assert score("user_feedback", feedback=opinions) == pytest.approx((1.0 + 0.4) / 2)
    assert score("user_feedback", feedback=opinions[::-1]) == pytest.approx((1.0 + 0.4) / 2)


def test_who_gives_no_name_is_one_end_user() -> None:
    opinions = [feedback(1, value=True, rater=None), feedback(2, value=False, rater=None)]
    assert score("user_feedback", feedback=opinions) == 0.0
    assert score("user_feedback", feedback=[*opinions, feedback(3, rater=None, user_ref="u1")]) == 0.5


def test_same_feedback_twice_counts_once_and_more_raters_are_more_certain() -> None:
    one = assess("user_feedback", feedback=[feedback(1), feedback(1)])
    two = assess("user_feedback", feedback=[feedback(1), feedback(2)])
    assert one is not None
    assert two is not None
    assert one.raw_data["scores"] == [1.0]
    assert (one.reasoning, two.reasoning) == ("1 rater: thumbs", "2 raters: thumbs, thumbs")
    assert one.confidence < two.confidence < 1.0


@pytest.mark.parametrize("name", ["safety", "accuracy"])
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"scores": {"safety": 0.5, "accuracy": 0.5}}, 0.5),
        ({"scores": {"safety": 1, "accuracy": 1}}, 1.0),
        ({"scores": {"safety": 2, "accuracy": -1}}, None),
        ({"scores": {"safety": True, "accuracy": "high"}}, None),
        ({"scores": {"safety": 10**400, "accuracy": -(10**400)}}, None),
        ({"scores": {"safety": float("nan"), "accuracy": float("inf")}}, None),
        ({"scores": [0.5]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_safety_and_accuracy_are_what_the_host_labelled(name: str, labels: Any, expected: float | None) -> None:
    assert score(name, labels=labels) == expected


@pytest.mark.parametrize(("met", "expected"), [("answer", 0.0), ("request", 1.0), ("tool_result", 1.0)])
def test_a_flagged_answer_is_unsafe_and_what_others_wrote_is_not(met: str, expected: float) -> None:
    flag = feedback(kind="flag", value=met, rater="content", reasoning="block: making a weapon")
    assert score("safety", feedback=[flag], labels={"scores": {"safety": 1.0}}) == expected


def costing(usd: float | None, seconds: float, calls: int, outcome: Outcome | None) -> float | None:
    return score(
        "cost_latency",
        metadata=TrajectoryMetadata(model="m", total_cost_usd=usd),
        start_timestamp=AT,
        end_timestamp=AT + timedelta(seconds=seconds),
        turns=turns(calls),
        outcome=outcome,
    )


def test_cost_and_latency_follow_the_formula() -> None:
    assessment = assess(
        "cost_latency",
        metadata=TrajectoryMetadata(model="m", total_cost_usd=0.3),
        end_timestamp=AT + timedelta(seconds=60),
        turns=turns(4),
    )
    assert assessment is not None
    assert assessment.raw_data["value"] == pytest.approx(10 - 0.1 * 3 - 0.01 * 10 + 0.1 * 4)
    assert assessment.score == pytest.approx((10.0 + 2) / 13)
    assert costing(None, 60, 4, None) is None


costs = st.floats(0, 1e6)
lengths = st.integers(1, 40)


@given(costs, costs, lengths, costs, costs, lengths)
def test_success_always_beats_failure_whatever_it_cost(
    dear: float, slow: float, few: int, cheap: float, fast: float, many: int
) -> None:
    success = costing(dear, slow, few, Outcome(status="success"))
    failure = costing(cheap, fast, many, Outcome(status="failure"))
    assert success is not None
    assert failure is not None
    assert success > failure


@given(costs, costs, costs, lengths)
def test_of_two_successes_the_cheaper_is_not_worse(one: float, other: float, seconds: float, calls: int) -> None:
    cheap = costing(min(one, other), seconds, calls, Outcome(status="success"))
    dear = costing(max(one, other), seconds, calls, Outcome(status="success"))
    assert cheap is not None
    assert dear is not None
    assert cheap >= dear


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_component_cannot_leave_its_range(value: float) -> None:
    with pytest.raises(ValueError, match=r"not in 0\.\.1"):
        Assessment(value, 1.0, "too much")
