"""Logs of executions as training rows: what is kept, what is left out, and what augmentation may change."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask, WorkflowExecution
from ratchet.core.planning.dataset import TrainingRow, augmented, prepared, reordered, row_of, substituted, variants
from ratchet.core.planning.logged import decisions
from ratchet.core.planning.rewards import workflow_reward
from tests.support.executions import CAPABLE, PLAN, execution, run_of


def rows_of(*executions: WorkflowExecution) -> tuple[list[TrainingRow], Counter[str]]:
    left_out = Counter[str]()
    return list(prepared([msgspec.json.encode(each) for each in executions], left_out)), left_out


def test_a_row_keeps_types_dependencies_choices_and_rewards() -> None:
    logged = execution(runs=(run_of("good", cost_usd=0.03), run_of("cheap"), run_of("quick", status="failed")))
    (row,), left_out = rows_of(logged)
    assert not left_out
    assert [each.task_type for each in row.sub_tasks] == [each.task_type for each in PLAN.sub_tasks]
    assert [each.depends_on for each in row.sub_tasks] == [(), (), (0, 1)]
    assert [each.complexity for each in row.sub_tasks] == [0.2, 0.5, 0.8]
    assert [(each.worker, each.propensity) for each in row.sub_tasks] == [("good", 0.2), ("cheap", 0.7), ("quick", 0.1)]
    assert [each.status for each in row.sub_tasks] == ["succeeded", "succeeded", "failed"]
    assert [each.options for each in row.sub_tasks] == [run.options for run in logged.runs]
    assert (row.success, row.cost_usd, row.latency_ms) == (True, logged.cost_usd, 360.0)
    assert row.reward == workflow_reward(logged)
    assert (row.policy, row.workflow_id) == ("planner@1", logged.workflow_id)


def test_every_member_of_a_row_is_written() -> None:
    (row,), _ = rows_of(execution())
    written = msgspec.json.decode(msgspec.json.encode(row))
    assert {*written} == {*TrainingRow.__struct_fields__}
    assert all({*each} == {*row.sub_tasks[0].__struct_fields__} for each in written["sub_tasks"])


@pytest.mark.parametrize(
    ("logged", "reason"),
    [
        (execution(plan=None, status="failed"), "planning failed"),
        (execution(runs=(run_of(),)), "not one run for each sub-task"),
        (execution(status="cancelled"), "cancelled"),
        (
            execution(runs=tuple(replace(run_of(), status="skipped", worker=None, propensity=None) for _ in range(3))),
            "no worker was asked",
        ),
        (
            execution(runs=tuple(replace(run_of(), propensity=None) for _ in range(3))),
            "a choice without worker or propensity",
        ),
        (
            execution(runs=tuple(replace(run_of(), worker="other") for _ in range(3))),
            "a chosen worker that was not capable",
        ),
    ],
)
def test_an_unusable_execution_is_counted_by_its_reason(logged: WorkflowExecution, reason: str) -> None:
    assert rows_of(logged) == ([], Counter({reason: 1}))


def test_a_line_without_a_task_type_is_left_out_not_defaulted() -> None:
    line = msgspec.json.decode(msgspec.json.encode(execution()))
    del line["plan"]["sub_tasks"][0]["task_type"]
    left_out = Counter[str]()
    assert list(prepared([msgspec.json.encode(line), b"", b"nonsense"], left_out)) == []
    assert left_out == {"not an execution: a member is missing or wrong": 2}


def test_an_execution_that_was_logged_twice_makes_one_row() -> None:
    rows, left_out = rows_of(execution(), execution(), execution(1))
    assert len(rows) == 2
    assert left_out == {"logged twice": 1}


def test_failed_executions_are_rows_as_well() -> None:
    runs = (run_of(), run_of(status="failed"), replace(run_of(), status="skipped", worker=None, propensity=None))
    (row,), _ = rows_of(execution(runs=runs, status="partial"))
    assert not row.success
    assert [each.was_executed for each in row.sub_tasks] == [True, True, False]


@st.composite
def rows(draw: st.DrawFn) -> TrainingRow:
    """Rows of any plan."""
    size = draw(st.integers(1, 8))
    sub_tasks = tuple(
        SubTask(
            task_type=draw(st.sampled_from(TASK_TYPES)),
            instruction=str(index),
            depends_on=tuple(sorted(draw(st.sets(st.integers(0, index - 1)) if index else st.just(set[int]())))),
        )
        for index in range(size)
    )
    plan = Plan(sub_tasks=sub_tasks, made_by="model")
    return row_of(execution(plan=plan, runs=tuple(run_of(draw(st.sampled_from(CAPABLE))) for _ in range(size))), plan)


def edges(row: TrainingRow) -> set[tuple[str, str]]:
    """Which sub-task depends on which, by their instructions."""
    named = [each.instruction for each in row.sub_tasks]
    return {(named[before], each.instruction) for each in row.sub_tasks for before in each.depends_on}


@given(rows(), st.integers(0, 2**32))
def test_another_order_keeps_every_dependency_and_its_direction(row: TrainingRow, seed: int) -> None:
    before = msgspec.json.encode(row)
    made = reordered(row, random.Random(seed))
    assert edges(made) == edges(row)
    assert all(earlier < index for index, each in enumerate(made.sub_tasks) for earlier in each.depends_on)
    assert sorted(each.instruction for each in made.sub_tasks) == sorted(each.instruction for each in row.sub_tasks)
    order = made.order or range(len(row.sub_tasks))
    assert [row.sub_tasks[old].instruction for old in order] == [each.instruction for each in made.sub_tasks]
    assert msgspec.json.encode(row) == before


@given(rows(), st.integers(0, 2**32))
def test_a_substitute_is_capable_and_never_an_executed_choice(row: TrainingRow, seed: int) -> None:
    before = msgspec.json.encode(row)
    made = substituted(row, random.Random(seed))
    (changed,) = [
        index for index, pair in enumerate(zip(row.sub_tasks, made.sub_tasks, strict=True)) if len({*pair}) > 1
    ]
    old, new = row.sub_tasks[changed], made.sub_tasks[changed]
    assert new.worker in {option.worker for option in new.options} - {old.worker}
    assert new.substituted_for == old.worker
    assert (new.propensity, new.cost_usd, new.latency_ms) == (None, None, None)
    assert not new.was_executed
    assert made.reward is None
    assert old.was_executed
    assert msgspec.json.encode(row) == before


@given(rows(), st.integers(0, 2**32), st.integers(0, 4))
def test_augmented_rows_differ_and_name_their_execution(row: TrainingRow, seed: int, times: int) -> None:
    made = list(augmented(row, times, random.Random(seed)))
    assert len(made) <= times
    assert all(each.is_augmented and each.workflow_id == row.workflow_id for each in made)
    assert len({msgspec.json.encode(each) for each in (row, *made)}) == len(made) + 1
    assert made == list(augmented(row, times, random.Random(seed)))


def test_a_worker_without_an_alternative_is_never_substituted() -> None:
    alone = replace(run_of(), options=run_of().options[:1])
    row = row_of(execution(runs=(alone, alone, alone)), PLAN)
    assert substituted(row, random.Random(0)) is row


@given(st.integers(0, 2**32))
def test_a_variant_is_an_execution_of_the_same_sub_tasks(seed: int) -> None:
    logged = execution()
    assert logged.plan is not None
    for made in variants(logged, 3, random.Random(seed)):
        assert made.plan is not None
        assert made != logged
        assert edges(row_of(made, made.plan)) == edges(row_of(logged, logged.plan))
        for run, decision in zip(made.runs, decisions(made), strict=True):
            assert decision.choice.workers[decision.chosen].name == run.worker
            assert run.options[decision.chosen].propensity == run.propensity


def test_an_execution_that_is_not_whole_has_no_variants() -> None:
    assert not [*variants(execution(plan=None, status="failed"), 3, random.Random(1))]
