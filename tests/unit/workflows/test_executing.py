"""How a plan is executed: its order, its bounds, and what a failure does to the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Trajectory, Turn, WorkflowExecution
from ratchet.core.contract.workflows import Worker, WorkerLimits
from ratchet.workflows.domain.asking import Answer, Asked, CallFailed
from ratchet.workflows.domain.workflow import Inputs
from ratchet.workflows.kv_workers import WorkerStore
from tests.support.workflow_world import ScriptedGateway, WorkflowWorld, bundle, llm, plan_of

DIAMOND = plan_of((), (0,), (0,), (1, 2))


async def world_of(plan: Any = DIAMOND, *workers: Worker, **members: Any) -> WorkflowWorld:
    world = WorkflowWorld(plan, **members)
    for each in workers or (llm(),):
        await world.workers.put(each)
    return world


def states(workflow: Any) -> list[str]:
    return [step.state for step in workflow.steps]


async def test_outputs_go_by_name_to_the_sub_tasks_that_depend_on_them() -> None:
    world = await world_of()
    workflow = await world.run()
    assert (workflow.state, states(workflow)) == ("succeeded", ["succeeded"] * 4)
    texts = [asked.text for asked in world.gateway.asked]
    assert texts[0] == "part 0"
    assert texts[3].startswith("part 3\n\n<generation_1>\nwriter: part 1")
    assert "<generation_2>" in texts[3]


async def test_inputs_go_to_sub_tasks_without_predecessors() -> None:
    world = await world_of(plan_of((), (0,)))
    workflow = world.workflow()
    await world.process().begin(workflow, Inputs(texts={"report.txt": "42"}))
    await world.published(workflow.workflow_id)
    texts = [asked.text for asked in world.gateway.asked]
    assert texts[0] == "part 0\n\n<report.txt>\n42\n</report.txt>"
    assert texts[1].startswith("part 1\n\n<generation_0>")


def meeting(number: int) -> ScriptedGateway:
    """Answers no call before so many were under way, and whatever else could begin has had its turn."""

    async def answer(worker: Worker, asked: Asked) -> Answer:
        async def met() -> bool:
            return gateway.most_under_way >= number

        await eventually(met)
        for _ in range(100):
            await asyncio.sleep(0)
        return Answer(asked.text + worker.name, 0.0)

    gateway = ScriptedGateway(answer)
    return gateway


async def test_at_most_five_sub_tasks_are_under_way() -> None:
    gateway = meeting(5)
    world = await world_of(plan_of(*[()] * 12), llm(at_once=20), gateway=gateway)
    assert (await world.run()).state == "succeeded"
    assert gateway.most_under_way == 5


async def test_a_worker_gets_no_more_calls_than_its_limit() -> None:
    gateway = meeting(2)
    world = await world_of(plan_of(*[()] * 6), llm(at_once=2), gateway=gateway)
    assert (await world.run()).state == "succeeded"
    assert gateway.most_under_way == 2


def failing(part: str, why: str = "no", *, again: bool = False, cost_usd: float | None = 0.0) -> Any:
    async def answer(worker: Worker, asked: Asked) -> Answer:
        if asked.text.startswith(part):
            raise CallFailed(why, again=again, cost_usd=cost_usd)
        return Answer(worker.name, 0.001)

    return answer


async def test_a_failed_branch_leaves_the_independent_one_alone() -> None:
    plan = plan_of((), (0,), (), (2,))
    world = await world_of(plan, gateway=ScriptedGateway(failing("part 0", "it is away")))
    workflow = await world.run()
    assert states(workflow) == ["failed", "skipped", "succeeded", "succeeded"]
    assert (workflow.state, workflow.result) == ("partial", "writer")
    assert [step.error for step in workflow.steps[:2]] == ["it is away", "sub-task 0, which it depends on, failed"]
    assert sorted(world.gateway.ended.values()) == [False, True, True]


async def test_a_failure_that_may_pass_is_tried_twice_more_and_paid() -> None:
    world = await world_of(plan_of(()), gateway=ScriptedGateway(failing("part 0", again=True, cost_usd=0.01)))
    workflow = await world.run()
    assert (world.gateway.calls["part 0"], workflow.steps[0].retries, workflow.state) == (3, 2, "failed")
    assert workflow.cost_usd == pytest.approx(0.03)
    assert len({asked.trajectory_id for asked in world.gateway.asked}) == 1


async def test_a_refusal_is_not_tried_again() -> None:
    world = await world_of(plan_of(()), gateway=ScriptedGateway(failing("part 0")))
    assert (await world.run()).steps[0].retries == 0
    assert world.gateway.calls["part 0"] == 1


async def test_a_call_that_does_not_fit_into_the_budget_is_not_made() -> None:
    world = await world_of(plan_of((), (0,)), llm(cost=0.001))

    async def dear(worker: Worker, asked: Asked) -> Answer:
        return Answer(worker.name + asked.text, 0.25)

    world.gateway.answer = dear
    workflow = await world.run(world.workflow(budget_usd=0.3))
    assert (states(workflow), workflow.state) == (["succeeded", "skipped"], "failed")
    assert world.gateway.calls.total() == 1
    assert "of the budget is left" in (workflow.steps[1].error or "")
    assert workflow.steps[1].propensity == 1.0
    assert (workflow.warning or "").startswith("83% of the budget")


async def test_a_call_waits_for_what_another_one_gives_back() -> None:
    async def cheap(worker: Worker, asked: Asked) -> Answer:
        await asyncio.sleep(0)
        return Answer(worker.name + asked.text, 0.01)

    world = await world_of(plan_of((), ()), llm(cost=0.001), gateway=ScriptedGateway(cheap))
    workflow = await world.run(world.workflow(budget_usd=0.3))
    assert (states(workflow), world.gateway.most_under_way) == (["succeeded", "succeeded"], 1)


async def test_no_capable_worker_fails_the_sub_task_in_words() -> None:
    workflow = await (await world_of(plan_of((), task_type="translation"))).run()
    assert workflow.steps[0].error == "the registry has no worker that can do translation"


async def test_a_too_long_input_is_refused_before_the_call() -> None:
    world = await world_of(plan_of(()), llm(max_input_chars=5))
    assert (await world.run()).steps[0].error == "its input has 6 characters, and writer takes 5"
    assert world.gateway.asked == []


async def test_a_chosen_worker_is_logged_with_all_that_could_have_done_it() -> None:
    world = await world_of(plan_of(()), llm("cheap"), llm("dear", cost=1e-5), llm("other", "code"))
    world.gateway.bundle = bundle()
    workflow = await world.run()
    (execution,) = world.bus.published(WorkflowExecution)
    (run,) = execution.runs
    assert [(option.worker, option.propensity) for option in run.options] == [("cheap", 0.98), ("dear", 0.02)]
    assert run.propensity == {"cheap": 0.98, "dear": 0.02}[run.worker or ""]
    assert (execution.policy.version, execution.policy.arm, execution.policy.weight) == (3, "canary", 0.1)
    assert (run.output_chars, run.status) == (workflow.steps[0].output_chars, "succeeded")
    (trajectory,) = world.bus.published(Trajectory)
    (call,) = world.bus.published(Turn)
    assert (call.trajectory_id, call.policy, call.cost_usd) == (
        trajectory.trajectory_id,
        execution.policy,
        execution.cost_usd,
    )
    assert (call.latency_ms, call.error is None) == (execution.latency_ms, execution.success)
    assert (trajectory.policy, trajectory.metadata.total_cost_usd) == (execution.policy, execution.cost_usd)


async def test_what_calls_were_like_is_measured() -> None:
    world = await world_of(plan_of(*[()] * 4), gateway=ScriptedGateway(failing("part 0", cost_usd=0.005)))
    await world.run()
    known = await WorkerStore(world.bus).find("writer")
    assert known is not None
    assert known.measured is not None
    assert (known.measured.calls, known.measured.success) == (4, pytest.approx(0.75))
    assert known.measured.cost_usd == pytest.approx((0.005 + 3 * 0.001) / 4)
    assert known.corrected.latency_ms == known.measured.latency_ms


async def test_nothing_of_an_unrecorded_user_is_published() -> None:
    world = await world_of(plan_of(()), gateway=ScriptedGateway(bundle=bundle(), recorded=False))
    workflow = await world.run()
    assert (workflow.state, workflow.unrecorded) == ("succeeded", True)
    assert [asked.unrecorded for asked in world.gateway.asked] == [True]
    assert world.bus.published(WorkflowExecution) == world.bus.published(Trajectory) == []


@st.composite
def plans(draw: st.DrawFn) -> Any:
    size = draw(st.integers(1, 8))
    return plan_of(
        *(tuple(sorted(draw(st.sets(st.integers(0, at - 1), max_size=3)))) if at else () for at in range(size))
    )


@settings(max_examples=60, deadline=None)
@given(plan=plans(), budget=st.floats(0.01, 2.0), shares=st.lists(st.floats(0, 1), min_size=1), worst=st.integers(0, 4))
async def test_no_run_spends_more_than_its_budget(plan: Any, budget: float, shares: list[float], worst: int) -> None:
    price = 0.001
    limits = WorkerLimits(max_output_tokens=100)
    world = await world_of(plan, llm(cost=price, max_output_tokens=limits.max_output_tokens))
    spent: list[float] = []

    async def answer(worker: Worker, asked: Asked) -> Answer:
        share = shares[len(spent) % len(shares)]
        cost = share * (limits.max_output_tokens + len(asked.text)) * worker.cost_per_token
        spent.append(cost)
        await asyncio.sleep(0)
        if worst and len(spent) % worst == 0:
            raise CallFailed("no", again=True, cost_usd=cost)
        return Answer("x" * 50, cost)

    world.gateway.answer = answer
    workflow = await world.run(world.workflow(budget_usd=budget))
    assert sum(spent) <= budget + 1e-9
    assert workflow.cost_usd == pytest.approx(sum(spent))
    assert (workflow.reserved_usd, world.gateway.most_under_way <= 5) == (0, True)
    done = [index for index, step in enumerate(workflow.steps) if step.state == "succeeded"]
    assert all({*plan.sub_tasks[index].depends_on} <= {*done} for index in done)


async def test_an_answer_of_unknown_cost_is_charged_its_most() -> None:
    async def silent(worker: Worker, asked: Asked) -> Answer:
        return Answer(worker.name + asked.text, None)

    world = await world_of(plan_of((), ()), llm(cost=0.001), gateway=ScriptedGateway(silent))
    workflow = await world.run()
    assert min(step.cost_usd for step in workflow.steps) > 0.1
    assert workflow.reserved_usd == 0


async def test_a_worker_with_too_small_a_limit_is_no_option() -> None:
    world = await world_of(plan_of(()), llm("narrow", max_input_chars=5), llm("wide", cost=1.0))
    workflow = await world.run(world.workflow(budget_usd=1e6))
    (step,) = workflow.steps
    assert (step.state, [option.worker for option in step.options], step.propensity) == ("succeeded", ["wide"], 1.0)


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_measures_that_cannot_be_read_fail_no_workflow(state: str) -> None:
    gateway = ScriptedGateway() if state == "succeeded" else ScriptedGateway(failing("part 0"))
    world = await world_of(plan_of(()), gateway=gateway)
    await Bucket(world.bus, "workers", str).put("writer.measured", "what?")
    assert (await world.run()).state == state


async def test_no_output_of_an_unrecorded_workflow_stays_but_its_result() -> None:
    world = await world_of(plan_of((), (0,)), gateway=ScriptedGateway(bundle=bundle(), recorded=False))
    workflow = await world.run()
    assert [*await world.store.outputs(workflow, [0, 1])] == [1]
    assert workflow.plan is not None
    assert (workflow.instruction, {part.instruction for part in workflow.plan.sub_tasks}) == ("", {""})
    assert workflow.result is not None


async def test_a_replaced_runner_writes_over_no_output() -> None:
    world = await world_of(plan_of(()))
    workflow = await world.run()
    before = await world.store.outputs(workflow, [0])
    await world.store.keep_output(workflow.workflow_id, 0, "of the runner before")
    assert await world.store.outputs(workflow, [0]) == before
