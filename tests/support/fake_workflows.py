"""The workflows service as commands see it: workflows that end after they were read a few times, and a registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
import pytest

from ratchet.bus.message import decode
from ratchet.core.contract.http.workflows import (
    AUTO,
    SubTaskOut,
    WorkerOut,
    WorkersOut,
    WorkflowIn,
    WorkflowOut,
    WorkflowsOut,
)
from ratchet.core.contract.workflows import Worker
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from tests.support.executions import AT, PLAN, run_of
from tests.support.running import listening

ID = "019ab3f2-71c4-7d3e-9a53-7f6f0c3c2e11"


def workflow(asked: WorkflowIn, state: str = "succeeded", cost_usd: float = 0.03) -> WorkflowOut:
    """A workflow of `PLAN`, whose sub-tasks all have the state of a run that has ended or none yet."""
    is_over = state not in {"planning", "running"}
    run = run_of() if is_over else None
    return WorkflowOut(
        workflow_id=asked.workflow_id or ID,
        role=asked.role,
        policy="planner@1" if asked.policy == AUTO else asked.policy,
        arm="stable",
        state=state,
        instruction=asked.instruction,
        plan=None if state == "planning" else PLAN,
        sub_tasks=[
            SubTaskOut(
                index=index,
                state="succeeded" if is_over else "running",
                worker="cheap",
                run=run,
                output="out" if run else None,
            )
            for index in range(0 if state == "planning" else len(PLAN.sub_tasks))
        ],
        budget_usd=asked.budget_usd,
        cost_usd=cost_usd if is_over else 0.0,
        reserved_usd=0.0,
        warning=None,
        error=None,
        result="done" if is_over else None,
        created_at=AT,
        ended_at=AT if is_over else None,
        deadline_at=AT + timedelta(seconds=asked.deadline_s),
    )


@dataclass
class FakeWorkflows:
    """Keeps what it was asked for. A workflow has ended once it was read twice."""

    ends_as: str = "succeeded"
    asked: dict[str, WorkflowIn] = field(default_factory=dict[str, WorkflowIn])
    reads: dict[str, int] = field(default_factory=dict[str, int])
    cancelled: set[str] = field(default_factory=set[str])
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])

    def find(self, method: str, path: str) -> Handler:
        """The handler of a path of the contract."""

        async def answer(request: Request) -> Answer:
            return json_response(msgspec.to_builtins(self._answer(method, path, request.body)))

        return answer

    def _answer(self, method: str, path: str, body: bytes) -> msgspec.Struct:
        match method, path.strip("/").split("/")[1:]:
            case "POST", ["workflows"]:
                return self._start(decode(body, WorkflowIn))
            case "GET", ["workflows"]:
                return WorkflowsOut(workflows=[self._shown(name) for name in self.asked])
            case "GET", ["workflows", name] if name in self.asked:
                self.reads[name] += 1
                return self._shown(name)
            case "POST", ["workflows", name, "cancel"] if name in self.asked:
                if self._shown(name).ended_at is None:  # one that is over stays as it is
                    self.cancelled.add(name)
                return self._shown(name)
            case _, ["workers", *rest]:
                return self._worker(method, rest, body)
            case _:
                raise HttpError(404, f"no such workflow or path: {path}")

    def _start(self, asked: WorkflowIn) -> WorkflowOut:
        name = asked.workflow_id or ID
        self.asked.setdefault(name, asked)
        self.reads.setdefault(name, 0)
        return self._shown(name)

    def _shown(self, name: str) -> WorkflowOut:
        state = ("planning", "running", self.ends_as)[min(self.reads[name], 2)]
        return workflow(self.asked[name], "cancelled" if name in self.cancelled else state)

    def _worker(self, method: str, rest: list[str], body: bytes) -> msgspec.Struct:
        if not rest and method == "GET":
            return WorkersOut(workers=[WorkerOut(worker=each, measured=None) for each in self.workers.values()])
        if not rest:
            worker = decode(body, Worker)
            self.workers[worker.name] = worker
            return WorkerOut(worker=worker, measured=None)
        if rest[0] not in self.workers:
            raise HttpError(404, f"no such worker: {rest[0]}")
        known = self.workers.pop(rest[0]) if rest[1:] == ["remove"] else self.workers[rest[0]]
        return WorkerOut(worker=known, measured=None)


@asynccontextmanager
async def workflows_service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeWorkflows]:
    """The fake at an address that commands find."""
    fake = FakeWorkflows()
    async with listening(fake.find) as url:
        monkeypatch.setenv("RATCHET_WORKFLOWS_URL", url)
        yield fake
