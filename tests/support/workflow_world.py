"""Runners of workflows on a broker in memory, with a scripted gateway and planners of fixed plans."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import uuid_utils

from ratchet.bus.testing import FakeBroker, FakeBus, eventually
from ratchet.core.contract import Message
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.gateway import FetchedBundle
from ratchet.core.contract.workflows import TASK_TYPES, Plan, PlannerRef, SubTask, Worker, WorkerLimits
from ratchet.core.errors import NotFound
from ratchet.core.planning.base import Choice, Planner, Version0
from ratchet.workflows.domain.asking import Answer, Asked
from ratchet.workflows.domain.workflow import Inputs, Lease, Workflow
from ratchet.workflows.kv_workers import WorkerStore
from ratchet.workflows.kv_workflows import WorkflowStore
from ratchet.workflows.parts import Parts
from ratchet.workflows.planners import Planners
from ratchet.workflows.runners import Runners, Timing
from tests.support.fake_bus import fake_broker

AT_ONCE = Timing(look_s=0.01, renew_s=0.0, takeover_s=0.0)
"""Another runner takes over at its first look."""


def plan_of(*depends_on: tuple[int, ...], task_type: str = "generation", confidence: float = 1.0) -> Plan:
    """A plan by what each sub-task depends on."""
    parts = tuple(
        SubTask(task_type=task_type, instruction=f"part {index}", depends_on=before)
        for index, before in enumerate(depends_on)
    )
    return Plan(sub_tasks=parts, made_by="model", confidence=confidence)


class FixedPlanner:
    """One plan, whatever the instruction is; it chooses as version 0 does."""

    task_types = TASK_TYPES

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self, instruction: str) -> Plan:
        return self._plan

    def propensities(self, choice: Choice) -> list[float]:
        return Version0(TASK_TYPES).propensities(choice)


class FixedPlanners(Planners):
    """The same planner for every policy."""

    def __init__(self, planner: Planner) -> None:
        super().__init__(lambda uri, sha256: b"")
        self._planner = planner

    async def find(self, ref: PlannerRef | None) -> Planner:
        return self._planner


async def at_once(worker: Worker, asked: Asked) -> Answer:
    """Any worker answers, for a tenth of a cent."""
    return Answer(f"{worker.name}: {asked.text[:40]}", 0.001)


@dataclass
class ScriptedGateway:
    """Answers as `answer` says; remembers what it was asked."""

    answer: Callable[[Worker, Asked], Awaitable[Answer]] = at_once
    bundle: FetchedBundle | None = None
    """None: the role has no policy."""
    recorded: bool = True
    asked: list[Asked] = field(default_factory=list[Asked])
    ended: dict[str, bool] = field(default_factory=dict[str, bool])
    under_way: int = 0
    most_under_way: int = 0

    async def fetch(
        self, policy: str, workflow_id: str, *, user: str | None, session: str | None
    ) -> tuple[FetchedBundle, bool]:
        if self.bundle is None:
            raise NotFound(f"nothing answers for {policy} ({workflow_id}, {user}, {session})")
        return self.bundle, self.recorded

    async def ask(self, worker: Worker, asked: Asked) -> Answer:
        self.asked.append(asked)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await self.answer(worker, asked)
        finally:
            self.under_way -= 1

    async def end(self, trajectory_id: str, workflow: Workflow, *, success: bool) -> None:
        self.ended[trajectory_id] = success

    @property
    def calls(self) -> Counter[str]:
        """Calls by the part of the plan that they were for."""
        return Counter(asked.text.partition("\n")[0] for asked in self.asked)


async def hangs(worker: Worker, asked: Asked) -> Answer:
    """No worker ever answers."""
    await asyncio.Event().wait()
    raise AssertionError(worker, asked)


async def asked_of(gateway: ScriptedGateway, number: int) -> None:
    """Wait until so many calls were made."""

    async def probe() -> bool:
        await asyncio.sleep(0)
        return len(gateway.asked) >= number

    await eventually(probe)


def bundle(version: int = 3, arm: str = "canary") -> FetchedBundle:
    """What the gateway draws."""
    return FetchedBundle(
        trajectory_id="", role="planner", policy=f"planner@{version}", version=version, digest="a" * 64, arm=arm,
        weight=0.1, bundle=Bundle(planner=PlannerRef(uri="s3://blobs/a", sha256="a" * 64)),
    )  # fmt: skip


def llm(name: str = "writer", *capabilities: str, cost: float = 1e-6, **limits: Any) -> Worker:
    """A worker behind the gateway."""
    return Worker(
        name=name,
        model_type="llm",
        capabilities=capabilities or ("generation",),
        model=name,
        cost_per_token=cost,
        limits=WorkerLimits(**{"max_output_tokens": 100, **limits}),
    )


class Crash(BaseException):
    """The process was killed: it does nothing more."""


class MortalStore(WorkflowStore):
    """The store of a process that is killed at one of its writes, before it or after it took effect."""

    def __init__(self, bus: FakeBus, at: int | None = None, *, after: bool = False) -> None:
        super().__init__(bus)
        self.at, self.after = at, after
        self.writes, self.is_dead = 0, False

    def check(self) -> None:
        if self.is_dead:
            raise Crash

    async def _mortal(self, write: Awaitable[Any]) -> Any:
        self.writes += 1
        hit = self.writes == self.at
        if self.is_dead or (hit and not self.after):
            self.is_dead = True
            write.close()  # type: ignore[attr-defined]
            raise Crash
        result = await write
        if hit:
            self.is_dead = True
        self.check()
        return result

    async def create(self, workflow: Workflow, inputs: Inputs) -> int:
        return await self._mortal(super().create(workflow, inputs))

    async def update(self, workflow: Workflow, revision: int) -> int:
        return await self._mortal(super().update(workflow, revision))

    async def keep_output(self, workflow_id: str, index: int, text: str) -> None:
        await self._mortal(super().keep_output(workflow_id, index, text))

    async def hold(self, workflow_id: str, lease: Lease, revision: int | None) -> int:
        return await self._mortal(super().hold(workflow_id, lease, revision))

    async def close(self, workflow_id: str) -> None:
        await self._mortal(super().close(workflow_id))


@dataclass
class WorkflowWorld:
    """A broker, and processes that run workflows on it."""

    plan: Plan = field(default_factory=lambda: plan_of(()))
    gateway: ScriptedGateway = field(default_factory=ScriptedGateway)
    broker: FakeBroker = field(default_factory=fake_broker)
    tool: Callable[[Worker, Asked], Awaitable[Answer]] = at_once

    def __post_init__(self) -> None:
        self.bus = FakeBus(self.broker)
        self.store = WorkflowStore(self.bus)
        self.workers = WorkerStore(self.bus)

    def process(self, store: WorkflowStore | None = None, timing: Timing = AT_ONCE, **parts: Any) -> Runners:
        """A process that runs workflows; one that was killed publishes nothing and asks nothing."""
        mortal = store if isinstance(store, MortalStore) else None
        alive = mortal.check if mortal is not None else lambda: None
        world = self

        class Gateway(ScriptedGateway):
            async def ask(self, worker: Worker, asked: Asked) -> Answer:
                alive()
                return await world.gateway.ask(worker, asked)

            async def fetch(self, *args: Any, **options: Any) -> tuple[FetchedBundle, bool]:
                return await world.gateway.fetch(*args, **options)

            async def end(self, *args: Any, **options: Any) -> None:
                await world.gateway.end(*args, **options)

        async def publish(messages: Sequence[Message]) -> None:
            alive()
            for message in messages:
                await world.bus.publish(message)

        given: dict[str, Any] = {
            "store": store or self.store,
            "registry": self.workers,
            "gateway": Gateway(),
            "ask_tool": self.tool,
            "planners": FixedPlanners(FixedPlanner(self.plan)),
            "publish": publish,
            "now": self.bus.now,
            "pause_s": 0.0,
        }
        return Runners(Parts(**{**given, **parts}), timing)

    def workflow(self, *, budget_usd: float = 1.0, deadline_s: float = 600.0, **members: Any) -> Workflow:
        """One to run."""
        given: dict[str, Any] = {"instruction": "Do all of it.", "role": "planner", **members}
        return Workflow(
            workflow_id=str(uuid_utils.uuid7()),
            budget_usd=budget_usd,
            deadline_s=deadline_s,
            left_s=deadline_s,
            created_at=self.bus.now(),
            holder="",
            seed=uuid.uuid4().hex,
            **given,
        )

    async def run(self, workflow: Workflow | None = None, **parts: Any) -> Workflow:
        """Run one to its end."""
        runners, workflow = self.process(**parts), workflow or self.workflow()
        await runners.begin(workflow, Inputs(texts={}))
        return await self.published(workflow.workflow_id)

    async def published(self, workflow_id: str) -> Workflow:
        """A workflow once nothing is left to do for it."""

        async def probe() -> Workflow | None:
            entry = await self.store.get(workflow_id)
            await asyncio.sleep(0)
            return entry.value if entry is not None and entry.value.closed else None

        return await eventually(probe)
