"""The simulator makes executions as the service logs them, the same for the same seed."""

import numpy as np
import pytest

from ratchet.bus.message import decode, encode
from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.planning.logged import decisions
from ratchet.core.planning.plans import sinks
from ratchet.core.planning.rewards import run_reward, step_rewards, workflow_reward
from ratchet.core.planning.simulator import Teacher, World, play_many


def test_a_seed_plays_the_same_again() -> None:
    assert play_many(World(1), Teacher(), 20, 2) == play_many(World(1), Teacher(), 20, 2)


def test_an_execution_survives_the_wire() -> None:
    row = play_many(World(1), Teacher(), 1, 2)[0]
    assert decode(encode(row), WorkflowExecution) == row


def test_an_execution_is_partial_where_a_part_of_its_result_is_there() -> None:
    seen: set[str] = set()
    for row in play_many(World(1), Teacher(), 300, 2):
        assert row.plan is not None
        results = {row.runs[index].status == "succeeded" for index in sinks(row.plan)}
        assert row.status == {(True,): "succeeded", (False,): "failed"}.get(tuple(results), "partial")
        seen.add(row.status)
    assert seen == {"succeeded", "partial", "failed"}


def test_workers_of_a_choice_stand_by_name() -> None:
    for row in play_many(World(1), Teacher(), 5, 2):
        for run in row.runs:
            assert [option.worker for option in run.options] == sorted(option.worker for option in run.options)


def test_propensities_of_a_logged_choice_add_up() -> None:
    for row in play_many(World(1), Teacher(), 20, 2):
        for decision in decisions(row):
            assert sum(option.propensity for option in decision.run.options) == pytest.approx(1.0)
            assert decision.run.options[decision.chosen].propensity == decision.propensity


def test_what_depends_on_a_failure_is_skipped() -> None:
    rows = play_many(World(1), Teacher(), 200, 2)
    for row in rows:
        assert row.plan is not None
        for task, run in zip(row.plan.sub_tasks, row.runs, strict=True):
            blocked = any(row.runs[other].status != "succeeded" for other in task.depends_on)
            assert (run.status == "skipped") == blocked
    assert any(run.status == "skipped" for row in rows for run in row.runs)


def test_the_true_value_is_the_mean_of_what_is_played() -> None:
    """Over all calls: what was paid and gained, beside what each worker would have gained on the first day."""
    world = World(2)
    played: list[float] = []
    true: list[float] = []
    for row in play_many(world, Teacher(), 1000, 3):
        for decision in decisions(row):
            played.append(run_reward(decision.run))
            worker = decision.choice.workers[decision.chosen]
            true.append(World(2).expected_reward(worker, decision.choice.sub_task))
    gap, error = np.mean(played) - np.mean(true), np.std(played) / len(played) ** 0.5
    assert abs(gap + 10.1 * 0.02 * np.mean(np.array(true) / 10.1)) < 4 * error  # a fiftieth of calls meets an outage


def test_steps_add_up_to_the_reward_of_a_workflow_in_a_row() -> None:
    for row in play_many(World(3), Teacher(), 50, 4):
        steps = step_rewards([decision.run for decision in decisions(row)], row.success)
        waited = sum(run.latency_ms for run in row.runs) - row.latency_ms  # of sub-tasks side by side
        assert sum(steps) == pytest.approx(workflow_reward(row) - 0.01 * waited / 6000.0, abs=1e-6)
