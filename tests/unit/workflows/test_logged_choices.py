"""What is logged of a choice is what the planner chose by."""

import pytest
from msgspec.structs import replace

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask, SubTaskRun, Worker, WorkerMeasures
from ratchet.core.planning.base import Choice
from ratchet.core.planning.logged import decisions, options_of
from ratchet.core.planning.network import NetworkSelector, fresh_weights
from ratchet.core.planning.simulator import Teacher, World, play_many


def test_a_logged_choice_asked_again_has_the_same_propensities() -> None:
    workers = [
        Worker(name=name, model_type="llm", capabilities=("code",), model=name, cost_per_token=price, latency_ms=900.0)
        for name, price in (("a", 1e-6), ("b", 3e-5), ("c", 0.0))
    ]
    known = WorkerMeasures(calls=7, success=0.4, latency_ms=900.0, cost_usd=0.2)
    plan = Plan(sub_tasks=(SubTask(task_type="code", instruction="Write."),), made_by="llm")
    choice = Choice("Write a parser.", plan, 0, workers, [known, None, known])
    selector = NetworkSelector(fresh_weights(len(TASK_TYPES), 5), TASK_TYPES)
    served = selector.propensities(choice)
    options = options_of(choice, served)
    run = SubTaskRun(status="failed", options=options, worker="b", propensity=served[1])
    row = play_many(World(1), Teacher(), 1, 1)[0]
    logged = replace(row, instruction=choice.instruction, plan=plan, runs=(run,))
    (decision,) = decisions(logged)
    assert selector.propensities(decision.choice) == pytest.approx(served, abs=1e-7)
