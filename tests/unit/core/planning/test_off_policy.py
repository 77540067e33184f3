"""What a log says of a candidate, and when it says nothing."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask, SubTaskRun, WorkerOption, WorkflowExecution
from ratchet.core.planning.base import Choice, with_floor
from ratchet.core.planning.learned import LearnedPlanner, execution_digest
from ratchet.core.planning.off_policy import Judgement, doubly_robust_terms, judge, judge_log, read_log
from ratchet.core.planning.rewards import decision_reward
from ratchet.core.planning.selectors import train_thompson
from ratchet.core.planning.simulator import Teacher, World, play_many


class Prefers:
    """Chooses one worker, where it is capable, with the floor."""

    def __init__(self, name: str) -> None:
        self.name = name

    def propensities(self, choice: Choice) -> list[float]:
        chosen = [float(worker.name == self.name) for worker in choice.workers]
        if not sum(chosen):
            return [1.0 / len(chosen)] * len(chosen)
        return with_floor(chosen)


class Knows:
    """Chooses what is best in truth."""

    def propensities(self, choice: Choice) -> list[float]:
        rewards = [World(5).expected_reward(worker, choice.sub_task) for worker in choice.workers]
        return with_floor([float(reward == max(rewards)) for reward in rewards])


def planner_of(selector: object, trained_on: Sequence[str] = ()) -> LearnedPlanner:
    return LearnedPlanner(TASK_TYPES, Teacher(), selector, frozenset(trained_on))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rows() -> list[WorkflowExecution]:
    """Logged by random choices."""
    return play_many(World(5), Teacher(), 400, 1)


def same_subject(rows: Sequence[WorkflowExecution], users: int) -> list[WorkflowExecution]:
    return [msgspec.structs.replace(row, user_ref=f"u{number % users}") for number, row in enumerate(rows)]


def shares_of(log_rows: Sequence[WorkflowExecution], **changes: float) -> list[WorkflowExecution]:
    """The same log, with a worker that stable gives nothing."""
    return [
        msgspec.structs.replace(
            row,
            runs=tuple(
                msgspec.structs.replace(
                    run,
                    options=tuple(
                        msgspec.structs.replace(option, propensity=changes.get(option.worker, option.propensity))
                        for option in run.options
                    ),
                )
                for run in row.runs
            ),
        )
        for row in log_rows
    ]


def test_the_logging_policy_itself_is_worth_what_was_earned(rows: list[WorkflowExecution]) -> None:
    judged = judge(rows, planner_of(Teacher()))
    assert judged.refusal is None
    assert judged.stable is not None
    assert judged.ips == judged.snips == judged.stable
    assert judged.difference is not None
    assert judged.difference.low < 0 < judged.difference.high


def test_candidate_that_never_chooses_otherwise_is_as_good(rows: list[WorkflowExecution]) -> None:
    log = read_log(rows, planner_of(Teacher()))
    certain = np.zeros_like(log.candidate_DW)
    certain[np.arange(len(log.chosen_D)), log.chosen_D] = 1.0
    same = replace(log, weights_D=np.ones(len(log.chosen_D)), candidate_DW=certain, stable_DW=certain)
    difference = judge_log(same, executions=len(rows)).difference
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_a_worse_candidate_is_shown_to_be_worse(rows: list[WorkflowExecution]) -> None:
    judged = judge(rows, planner_of(Prefers("llm-small")))
    assert judged.difference is not None
    assert judged.difference.high < 0


def test_a_better_candidate_is_shown_to_be_better(rows: list[WorkflowExecution]) -> None:
    judged = judge(rows, planner_of(Knows()))
    assert judged.difference is not None
    assert judged.difference.low > 0


def test_executions_that_a_candidate_learned_from_are_left_out(rows: list[WorkflowExecution]) -> None:
    digests = [execution_digest(row.workflow_id) for row in rows[:150]]
    judged = judge(rows, planner_of(Teacher(), digests))
    assert (judged.executions, judged.excluded) == (250, 150)


def test_a_small_log_judges_nothing(rows: list[WorkflowExecution]) -> None:
    judged = judge(rows[:20], planner_of(Prefers("llm-large")))
    assert judged.refusal is not None
    assert "100 are needed" in judged.refusal
    assert judged.doubly_robust is None


def test_an_empty_log_judges_nothing() -> None:
    assert judge([], planner_of(Teacher())).refusal is not None


def test_executions_without_a_plan_judge_nothing(rows: list[WorkflowExecution]) -> None:
    bare = [msgspec.structs.replace(row, plan=None, runs=()) for row in rows]
    assert judge(bare, planner_of(Teacher())).refusal is not None


def test_choices_that_were_never_drawn_stop_the_judgement(rows: list[WorkflowExecution]) -> None:
    """Weights that are all small and alike look like a large sample."""
    log = read_log(rows, planner_of(Teacher()))
    small = np.where(log.workflow_D % 2, 0.02, 1.0)
    judged = judge_log(replace(log, weights_D=small), 400)
    assert judged.effective_sample_size > 100
    assert judged.refusal is not None
    assert "lacks what the candidate would choose" in judged.refusal


def test_one_heavy_execution_stops_the_judgement(rows: list[WorkflowExecution]) -> None:
    log = read_log(rows, planner_of(Teacher()))
    weights = log.weights_D.copy()
    weights[log.workflow_D == np.bincount(log.workflow_D).argmax()] *= 60
    refusal = judge_log(replace(log, weights_D=weights), 400).refusal
    assert refusal is not None
    assert "one execution has" in refusal


def test_choices_that_stable_never_makes_stop_the_judgement(rows: list[WorkflowExecution]) -> None:
    judged = judge(shares_of(rows, vision=0.0), planner_of(Prefers("vision")))
    assert judged.refusal is not None
    assert "stable never chooses" in judged.refusal


def test_one_subject_gives_no_interval(rows: list[WorkflowExecution]) -> None:
    refusal = judge(same_subject(rows, 1), planner_of(Teacher())).refusal
    assert refusal is not None
    assert "one subject" in refusal


def width(judged: Judgement) -> float:
    assert judged.doubly_robust is not None
    return judged.doubly_robust.high - judged.doubly_robust.low


def test_intervals_are_those_of_subjects_not_of_executions(rows: list[WorkflowExecution]) -> None:
    repeated = [
        msgspec.structs.replace(row, workflow_id=f"{row.workflow_id}-{copy}", user_ref=row.workflow_id)
        for row in rows
        for copy in range(4)
    ]
    alone, copied = judge(rows, planner_of(Teacher())), judge(repeated, planner_of(Teacher()))
    assert width(copied) == pytest.approx(width(alone), rel=0.05)


def test_a_decision_is_never_judged_by_a_model_that_saw_it(rows: list[WorkflowExecution]) -> None:
    log = read_log(rows, planner_of(Prefers("llm-large")))
    rewards = log.rewards_D.copy()
    rewards[log.fold_D == 0] += 1000.0
    zero = np.zeros_like(log.weights_D)
    before = doubly_robust_terms(replace(log, weights_D=zero))
    after = doubly_robust_terms(replace(log, weights_D=zero, rewards_D=rewards))
    assert after[log.fold_D == 0] == pytest.approx(before[log.fold_D == 0])
    assert not np.allclose(after[log.fold_D != 0], before[log.fold_D != 0])


def test_a_draw_that_the_budget_had_no_room_for_counts_as_a_failure() -> None:
    option = WorkerOption(worker="a", propensity=0.5, model_type="llm", cost_per_token=1e-6, latency_ms=10.0)
    dear = msgspec.structs.replace(option, worker="b")
    skipped = SubTaskRun(status="skipped", options=(option, dear), worker="b", propensity=0.5, error="dear")
    plan = Plan(sub_tasks=(SubTask(task_type="code", instruction="x"),), made_by="llm")
    row = msgspec.structs.replace(play_many(World(1), Teacher(), 1, 1)[0], plan=plan, runs=(skipped,))
    log = read_log([row], planner_of(Prefers("b")))
    assert log.chosen_D.tolist() == [1]
    assert log.rewards_D.tolist() == [decision_reward(False, 0.0, 0.0)]
    assert train_thompson([row], TASK_TYPES).workers == ("b",)


def test_a_skipped_sub_task_without_a_draw_is_no_decision() -> None:
    option = WorkerOption(worker="a", propensity=1.0, model_type="llm", cost_per_token=1e-6, latency_ms=10.0)
    done = SubTaskRun(status="failed", options=(option,), worker="a", propensity=1.0)
    task = SubTask(task_type="code", instruction="x")
    plan = Plan(sub_tasks=(task, msgspec.structs.replace(task, depends_on=(0,))), made_by="llm")
    row = msgspec.structs.replace(
        play_many(World(1), Teacher(), 1, 1)[0], plan=plan, runs=(done, SubTaskRun(status="skipped"))
    )
    assert len(read_log([row], planner_of(Prefers("a"))).rewards_D) == 1
