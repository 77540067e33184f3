"""One workflow over its whole life: planned, cancelled, out of time, killed at any write, and taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import uuid_utils
from msgspec.structs import replace
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeClock
from ratchet.core.contract import Message, Trajectory, WorkflowExecution
from ratchet.core.contract.bundle import NO_BUNDLE
from ratchet.core.contract.workflows import TASK_TYPES, Worker, WorkerOption
from ratchet.core.errors import Conflict, Rejected, Unavailable
from ratchet.core.planning.base import Version0
from ratchet.workflows.domain.asking import Answer, Asked, CallFailed
from ratchet.workflows.domain.choosing import drawn
from ratchet.workflows.domain.workflow import Inputs, Lease, Step, stopped
from ratchet.workflows.held import Held, Lost
from ratchet.workflows.kv_workflows import WorkflowStore
from ratchet.workflows.planners import plan_by_model
from ratchet.workflows.runners import TIMING, Runners, Timing
from tests.support.fake_bus import fake_broker
from tests.support.workflow_world import (
    FixedPlanners,
    MortalStore,
    ScriptedGateway,
    WorkflowWorld,
    asked_of,
    bundle,
    hangs,
    llm,
    plan_of,
)

CHAIN = plan_of((), (0,), (1,))
WRITES = 17
"""Of a chain of three: one more than it takes."""
PLAN = '{"sub_tasks": [{"task_type": "generation", "instruction": "part 0", "depends_on": [], "complexity": 0.5}]}'


def counted(metric: str) -> float:
    return REGISTRY.get_sample_value(metric, {"role": "planner"}) or 0.0


async def world_of(*workers: Worker, **members: Any) -> WorkflowWorld:
    world = WorkflowWorld(**{"plan": CHAIN, **members})
    for each in workers or (llm(),):
        await world.workers.put(each)
    return world


async def test_version_0_plans_one_sub_task_where_the_role_has_no_policy() -> None:
    world = await world_of()
    workflow = await world.run(planners=FixedPlanners(Version0(TASK_TYPES)))
    assert workflow.plan is not None
    assert (workflow.plan.made_by, workflow.policy, len(workflow.steps)) == ("single", "planner@0", 1)
    (execution,) = world.bus.published(WorkflowExecution)
    assert (execution.policy.version, execution.policy.arm, execution.success) == (0, "stable", True)


async def test_a_version_that_is_not_there_ends_the_workflow_in_words() -> None:
    world = await world_of()
    workflow = await world.run(world.workflow(asked_policy="planner@9"))
    assert (workflow.state, workflow.plan) == ("failed", None)
    assert (workflow.error or "").startswith("nothing answers for planner@9")
    (execution,) = world.bus.published(WorkflowExecution)
    assert (execution.plan, execution.runs, execution.status) == (None, (), "failed")


async def test_a_cancelled_workflow_makes_no_further_call() -> None:
    world = await world_of(gateway=ScriptedGateway(hangs))
    runners, workflow = world.process(), world.workflow()
    await runners.begin(workflow, Inputs(texts={}))
    await asked_of(world.gateway, 1)
    assert await runners.cancel(workflow.workflow_id)
    over = await world.published(workflow.workflow_id)
    assert [step.state for step in over.steps] == ["cancelled"] * 3
    assert (over.state, over.cost_usd > 0, over.reserved_usd) == ("cancelled", True, 0)
    assert (world.gateway.under_way, len(world.gateway.asked)) == (0, 1)
    assert not await runners.cancel(workflow.workflow_id)


async def test_another_process_can_cancel() -> None:
    world = await world_of(gateway=ScriptedGateway(hangs))
    runners, workflow = world.process(), world.workflow()
    await runners.begin(workflow, Inputs(texts={}))
    await asked_of(world.gateway, 1)
    assert await world.process().cancel(workflow.workflow_id)
    await runners.look()
    assert (await world.published(workflow.workflow_id)).state == "cancelled"


async def test_a_workflow_ends_within_a_second_of_being_cancelled() -> None:
    clock = FakeClock()
    world = await world_of(gateway=ScriptedGateway(hangs))
    first, second = (world.process(timing=TIMING, monotonic=clock.monotonic) for _ in range(2))
    workflow = world.workflow()
    await first.begin(workflow, Inputs(texts={}))
    await asked_of(world.gateway, 1)
    clock.advance(10)
    await first.look()
    assert await second.cancel(workflow.workflow_id)
    clock.advance(TIMING.look_s)  # as long as a process goes on without a look
    await first.look()
    over = await world.published(workflow.workflow_id)
    assert (over.state, world.gateway.under_way) == ("cancelled", 0)
    assert over.deadline_s - over.left_s <= 11


@pytest.mark.parametrize("set_by_s", [-86400.0, 86400.0], ids=["back", "forward"])
async def test_a_clock_that_is_set_ends_no_workflow(set_by_s: float) -> None:
    clock = FakeClock()

    async def meanwhile(worker: Worker, asked: Asked) -> Answer:
        clock.set_by(set_by_s)
        clock.advance(2)
        return Answer(worker.name + asked.text, 0.001)

    world = await world_of(gateway=ScriptedGateway(meanwhile), broker=fake_broker(clock))
    over = await world.run(world.workflow(deadline_s=10.0), monotonic=clock.monotonic)
    (execution,) = world.bus.published(WorkflowExecution)
    assert (over.state, over.left_s) == ("succeeded", 4.0)
    assert (execution.latency_ms, [run.latency_ms for run in execution.runs]) == (6000, [2000] * 3)


async def test_a_workflow_that_no_broker_takes_is_counted_and_closed() -> None:
    async def refused(_: Sequence[Message]) -> None:
        raise Rejected("it cannot be redacted")

    world, before = await world_of(), counted("ratchet_workflows_unrecorded_total")
    over = await world.run(publish=refused)
    assert (over.state, over.closed) == ("succeeded", True)
    assert counted("ratchet_workflows_unrecorded_total") == before + 1


async def test_a_budget_that_is_mostly_spent_is_warned_of_once() -> None:
    async def dear(worker: Worker, asked: Asked) -> Answer:
        return Answer(worker.name + asked.text, 0.3)

    world, before = await world_of(gateway=ScriptedGateway(dear)), counted("ratchet_workflow_budget_warnings_total")
    with capture_logs() as lines:
        await world.run()
    assert [line["reason"] for line in lines if line["event"] == "most of a budget is spent"] == [
        "90% of the budget of $1 is spent"
    ]
    assert counted("ratchet_workflow_budget_warnings_total") == before + 1


async def test_a_deadline_ends_calls_under_way_and_skips_the_rest() -> None:
    world = await world_of(gateway=ScriptedGateway(hangs))
    workflow = await world.run(world.workflow(deadline_s=0.2))
    assert [step.state for step in workflow.steps] == ["failed", "skipped", "skipped"]
    assert workflow.error == "its deadline of 0.2 s has passed"


async def test_a_bug_ends_its_workflow_and_no_other() -> None:
    async def broken(worker: Worker, asked: Asked) -> Answer:
        raise ZeroDivisionError(worker, asked)

    world = await world_of(gateway=ScriptedGateway(broken))
    workflow = await world.run()
    assert (workflow.state, workflow.error) == ("failed", "the service failed: ZeroDivisionError")


async def end_of(runners: Runners) -> None:
    """Wait until what a process that was killed had under way has ended."""
    tasks = [mine.task for mine in runners._mine.values()]  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, WRITES + 1))
async def test_a_run_goes_on_after_a_kill_at_any_write(at: int, after: bool) -> None:
    world = await world_of()
    store, workflow = MortalStore(world.bus, at, after=after), world.workflow()
    killed = world.process(store)
    with suppress(BaseException):
        await killed.begin(workflow, Inputs(texts={"a": "b"}))
    await end_of(killed)
    before = await world.store.get(workflow.workflow_id)
    flying = [index for index, step in enumerate(before.value.steps) if step.state == "running"] if before else []
    second = world.process()
    await second.look()
    await second.begin(workflow, Inputs(texts={"a": "b"}))  # its caller asks again
    over = await world.published(workflow.workflow_id)
    assert (over.state, over.result is not None) == ("succeeded", True)
    twice = {part: calls for part, calls in world.gateway.calls.items() if calls > 1}
    assert {*twice} <= {f"part {index}" for index in flying}
    reserved = sum(before.value.steps[index].reserved_usd for index in flying) if before else 0
    assert over.cost_usd == pytest.approx(0.003 + reserved)
    assert len(world.bus.published(WorkflowExecution)) == len(world.bus.published(Trajectory)) == 1
    assert await world.store.leases() == {}
    assert store.is_dead == (at < WRITES), "WRITES is one more than there are"


async def test_a_runner_that_was_replaced_makes_no_further_call() -> None:
    held = asyncio.Event()

    async def waits(worker: Worker, asked: Asked) -> Answer:
        if len(world.gateway.asked) == 1:
            await held.wait()
        return Answer(worker.name + asked.text, 0.001)

    world = await world_of(gateway=ScriptedGateway(waits))
    first, workflow = world.process(), world.workflow()
    await first.begin(workflow, Inputs(texts={}))
    await asked_of(world.gateway, 1)
    second = world.process()
    await second.look()
    over = await world.published(workflow.workflow_id)
    held.set()
    await end_of(first)
    assert (over.state, world.gateway.calls["part 0"], world.gateway.calls["part 1"]) == ("succeeded", 2, 1)


async def test_a_lease_that_is_renewed_is_not_taken_over() -> None:
    clock = FakeClock()
    world = await world_of(gateway=ScriptedGateway(hangs))
    timing = Timing(renew_s=4.0, takeover_s=15.0)
    first, second = (world.process(timing=timing, monotonic=clock.monotonic) for _ in range(2))
    workflow = world.workflow()
    await first.begin(workflow, Inputs(texts={}))
    for _ in range(10):
        clock.advance(5)
        await first.look()
        await second.look()
    assert len(second._mine) == 0  # pyright: ignore[reportPrivateUsage]
    clock.advance(14)
    await second.look()
    assert len(second._mine) == 0  # pyright: ignore[reportPrivateUsage]
    clock.advance(2)
    await second.look()
    assert len(second._mine) == 1  # pyright: ignore[reportPrivateUsage]
    lease = await world.store.lease(workflow.workflow_id)
    assert lease is not None
    assert lease.value.holder == second.holder
    for runners in (first, second):
        for mine in runners._mine.values():  # pyright: ignore[reportPrivateUsage]
            mine.task.cancel()
        await end_of(runners)


async def test_a_stopped_process_gives_its_workflows_back() -> None:
    world = await world_of(gateway=ScriptedGateway(hangs))
    first, workflow = world.process(timing=Timing(look_s=0.01)), world.workflow()
    running = asyncio.create_task(first.run())
    await first.begin(workflow, Inputs(texts={}))
    await asked_of(world.gateway, 1)
    await first.stop()
    await running
    lease = await world.store.lease(workflow.workflow_id)
    assert lease is not None
    assert lease.value.holder == ""
    second = world.process(timing=Timing())
    world.gateway.answer = ScriptedGateway().answer
    await second.look()
    assert (await world.published(workflow.workflow_id)).state == "succeeded"


async def test_the_same_id_starts_nothing_twice() -> None:
    world = await world_of()
    runners, workflow = world.process(), world.workflow()
    await asyncio.gather(*(runners.begin(workflow, Inputs(texts={})) for _ in range(3)))
    await world.published(workflow.workflow_id)
    again = await runners.begin(workflow, Inputs(texts={}))
    assert (again.closed, world.gateway.calls.total()) == (True, 3)


async def test_a_write_whose_answer_was_lost_counts() -> None:
    world = await world_of()
    revision = await world.store.create(world.workflow(), Inputs(texts={}))
    (key,) = [workflow.workflow_id for workflow in await world.store.newest(1, lambda _: True)]
    entry = await world.store.get(key)
    assert entry is not None
    held = Held(world.store, entry.value, revision, lambda: 0.0)

    def changed(workflow: Any) -> Any:
        return replace(workflow, error="one")

    await world.store.update(changed(entry.value), revision)  # ours, whose answer never came
    assert (await held.change(changed)).error == "one"
    other = await world.store.get(key)
    assert other is not None
    await world.store.update(replace(other.value, error="another process"), other.revision)
    with pytest.raises(Lost):
        await held.change(lambda workflow: replace(workflow, error="two"))


async def test_a_worker_that_left_the_registry_is_not_replaced_by_another() -> None:
    world = await world_of(llm(), plan=plan_of(()))
    store, workflow = MortalStore(world.bus, 6), world.workflow()
    killed = world.process(store)
    with suppress(BaseException):
        await killed.begin(workflow, Inputs(texts={}))
    await end_of(killed)
    await world.workers.remove("writer")
    await world.workers.put(llm("another"))
    await world.process().look()
    over = await world.published(workflow.workflow_id)
    assert over.steps[0].error == "the worker writer, which was chosen for it, has left the registry"
    assert over.steps[0].worker == "writer"


def planning(*answers: str, **more: Any) -> ScriptedGateway:
    """A gateway whose worker `planning` answers with these, one after the other."""
    left = [*answers]

    async def answer(worker: Worker, asked: Asked) -> Answer:
        if asked.response_format is None:
            return Answer("done", 0.001)
        if not left:
            raise CallFailed("it is away", again=True, cost_usd=0.002)
        return Answer(left.pop(0), 0.002)

    return ScriptedGateway(answer, **more)


PLANNER = llm("sage", "planning")


async def test_a_language_model_plans_where_the_planner_is_not_confident() -> None:
    world = await world_of(llm(), PLANNER, plan=plan_of((), confidence=0.2), gateway=planning(PLAN, bundle=bundle()))
    workflow = await world.run(planning_model="sage")
    assert workflow.plan is not None
    assert (workflow.plan.made_by, workflow.state) == ("llm", "succeeded")
    assert (workflow.planning_cost_usd, workflow.cost_usd) == (pytest.approx(0.002), pytest.approx(0.003))
    sure = await world_of(llm(), PLANNER, plan=plan_of((), confidence=0.9), gateway=planning(PLAN))
    assert (await sure.run(planning_model="sage")).planning_cost_usd == 0


async def test_a_plan_is_repaired_once_and_refused_then() -> None:
    cyclic = PLAN.replace('"depends_on": []', '"depends_on": [0]')
    world = await world_of(llm(), PLANNER, plan=plan_of((), confidence=0.2), gateway=planning(cyclic, PLAN))
    assert (await world.run(planning_model="sage")).state == "succeeded"
    assert "wait for each other" in world.gateway.asked[1].text
    world = await world_of(llm(), PLANNER, plan=plan_of((), confidence=0.2), gateway=planning(cyclic, cyclic, PLAN))
    workflow = await world.run(planning_model="sage")
    assert (workflow.state, workflow.plan, workflow.planning_cost_usd) == ("failed", None, pytest.approx(0.004))


@pytest.mark.parametrize(("answers", "price"), [([], 1e-6), ([PLAN], 10.0)], ids=["away", "too dear"])
async def test_the_planner_s_own_plan_is_run_where_no_model_can_plan(answers: list[str], price: float) -> None:
    plan, sage = plan_of((), confidence=0.2), llm("sage", "planning", cost=price)
    world = await world_of(llm(), sage, plan=plan, gateway=planning(*answers))
    workflow = await world.run(planning_model="sage")
    assert workflow.plan is not None
    assert (workflow.plan.made_by, workflow.state) == ("model", "succeeded")


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"sub_tasks": []}', PLAN.replace("generation", "cooking")])
async def test_what_is_no_plan_is_refused_in_words(answer: str) -> None:
    asked: list[str] = []

    async def ask(system: str, text: str) -> str:
        asked.append(system + text)
        return answer

    with pytest.raises(Rejected):
        await plan_by_model(ask, "Do it.")
    assert len(asked) == 2


async def test_a_lease_is_given_to_one_of_two() -> None:
    world = await world_of()
    await world.store.hold("x", Lease(holder="a"), None)
    with pytest.raises(Conflict):
        await world.store.hold("x", Lease(holder="b"), None)


async def test_a_policy_that_plans_nothing_is_refused_and_counts_nowhere() -> None:
    other = replace(bundle(), policy="support@3", role="support", bundle=NO_BUNDLE)
    world = await world_of(gateway=ScriptedGateway(bundle=other))
    workflow = await world.run(world.workflow(role="support"))
    assert (workflow.state, workflow.claim) == ("failed", None)
    assert (workflow.error or "").startswith("support@3 is no planner")
    assert world.bus.published(WorkflowExecution) == world.bus.published(Trajectory) == []


def test_draws_follow_from_a_seed_and_not_from_the_id() -> None:
    options = tuple(
        WorkerOption(worker=name, propensity=0.5, model_type="llm", cost_per_token=0.0, latency_ms=1.0) for name in "ab"
    )
    draws = {seed: [drawn(seed, index, options).worker for index in range(20)] for seed in ("s", "t")}
    assert draws["s"] == [drawn("s", index, options).worker for index in range(20)] != draws["t"]


async def test_a_kill_before_the_workflow_leaves_no_id_taken() -> None:
    world = await world_of()
    store, workflow = MortalStore(world.bus, 1, after=True), world.workflow()
    with suppress(BaseException):
        await world.process(store).begin(workflow, Inputs(texts={}))
    assert [*await world.store.leases()] == [workflow.workflow_id]
    await world.process().look()
    assert await world.store.leases() == {}


async def test_a_kill_after_the_workflow_leaves_one_that_is_taken_over() -> None:
    world = await world_of()
    store, workflow = MortalStore(world.bus, 2, after=True), world.workflow()
    with suppress(BaseException):
        await world.process(store).begin(workflow, Inputs(texts={}))
    await world.process().look()
    assert (await world.published(workflow.workflow_id)).state == "succeeded"


async def test_a_value_that_cannot_be_read_keeps_no_other_waiting() -> None:
    world = await world_of()
    broken, workflow = str(uuid_utils.uuid7()), world.workflow()
    await Bucket(world.bus, "workflows", str).put(broken, "what?")
    await world.store.hold(broken, Lease(holder=""), None)
    await world.store.hold(workflow.workflow_id, Lease(holder="", left_s=60.0), None)
    await world.store.create(workflow, Inputs(texts={}))
    await world.process().look()
    assert (await world.published(workflow.workflow_id)).state == "succeeded"


async def test_no_workflow_begins_while_the_bucket_is_almost_full() -> None:
    world = await world_of()

    class Full(WorkflowStore):
        async def has_room(self) -> bool:
            return False

    with pytest.raises(Unavailable, match="almost full"):
        await world.process(Full(world.bus)).begin(world.workflow(), Inputs(texts={}))
    assert await world.store.leases() == {}


async def test_a_sub_task_that_was_asked_before_a_stop_failed() -> None:
    plan = plan_of((), ())
    steps = (Step(started_at=datetime.now(UTC), worker="writer", cost_usd=0.1), Step())
    over = stopped(replace((await world_of()).workflow(), plan=plan, steps=steps), "late", cancelled=False)
    assert [step.state for step in over.steps] == ["failed", "skipped"]


async def test_a_bucket_has_room_until_its_share_is_used() -> None:
    world = await world_of()
    await world.store.create(world.workflow(), Inputs(texts={"a": "x" * 1000}))
    assert await world.store.has_room()
    used = await Bucket(world.bus, "workflows", str).filled()
    assert 0 < used < 0.001
    assert not await world.store.has_room(used)
