"""The HTTP API: run workflows, follow them, and keep the registry of workers.

A key with `infer:<role>` of a planner runs workflows of that role and sees those; `view` sees them, too.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

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
from ratchet.core.errors import BadRequest, NotFound
from ratchet.core.rules.access import Caller, KeyScope
from ratchet.core.rules.arms import parse_model
from ratchet.core.rules.texts import user_ref
from ratchet.core.rules.workers import check_worker
from ratchet.core.service.control_api import ControlApi
from ratchet.workflows.domain.choosing import Known
from ratchet.workflows.domain.workflow import RUNNING, SUCCEEDED, Inputs, Workflow
from ratchet.workflows.http_tools import is_url
from ratchet.workflows.kv_workers import WorkerStore
from ratchet.workflows.kv_workflows import WorkflowStore, digest_of
from ratchet.workflows.parts import new_id
from ratchet.workflows.runners import Runners

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker is away, or too many workflows are under way or kept.",
}
BEGUN: Mapping[int, str] = {
    202: "The workflow, which has begun.",
    200: "There is a workflow of this id: this one. Nothing was begun.",
}
REFUSED: Mapping[int, str] = {
    400: "The body is not what this document says.",
    409: "There is a workflow of this id with another instruction or other inputs.",
}
WRONG: Mapping[int, str] = {400: "The body is not what this document says."}
UNKNOWN: Mapping[int, str] = {404: "There is no such workflow of the last day, or it is not the key's to see."}
UNKNOWN_WORKER: Mapping[int, str] = {404: "There is no such worker."}
LARGEST_INPUTS, LARGEST_BODY = 1_000_000, 2 * 1024 * 1024
"""Bytes of all inputs, and of the order with them: JSON may spell a character in two."""
LISTED = 200
POLL_S, HEARTBEAT_S = 0.5, 15.0
"""Of streams of events: a change shows within half a second, whichever process runs the workflow."""
LOOKS, LOOK_S = 20, 0.1
"""For the end of a workflow that is cancelled: one whose runner takes longer is answered as it stands."""


@dataclass(frozen=True)
class WorkflowRoutes:
    """`/v1/workflows` and what is under it."""

    runners: Runners
    store: WorkflowStore
    user_key: str | None
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/workflows/{workflow_id}"
        infer = KeyScope.INFER
        api.route("POST", "/v1/workflows", self.run_workflow, scope=infer, answers=BEGUN, errors=REFUSED)
        api.route("GET", "/v1/workflows", self.list_workflows, scope=None)
        api.route("GET", one, self.get_workflow, scope=None, errors=UNKNOWN, reads=True)
        api.route("POST", f"{one}/cancel", self.cancel_workflow, scope=None, errors=UNKNOWN, urgent=True)
        api.stream(f"{one}/events", self.follow_workflow, scope=None, events={"workflow": WorkflowOut}, errors=UNKNOWN)

    async def run_workflow(self, body: WorkflowIn, caller: Caller) -> tuple[int, WorkflowOut]:
        """Plan and run a workflow, as an agent of the planner's role."""
        most = caller.limits.usd_per_day
        if most is not None and body.budget_usd > most:
            raise BadRequest(f"the key may spend ${most:g} a day, and the budget is more", param="budget_usd")
        workflow = self._workflow_of(body)
        before = await self.store.get(workflow.workflow_id)
        if before is not None and before.value.role != body.role:
            raise BadRequest("another role has a workflow of this id", param="workflow_id")
        begun = await self.runners.begin(workflow, Inputs(texts=body.inputs, user=body.user))
        return 202 if before is None else 200, await self._shown(begun)

    def _workflow_of(self, body: WorkflowIn) -> Workflow:
        size = sum(len(name.encode()) + len(text.encode(errors="replace")) for name, text in body.inputs.items())
        if size > LARGEST_INPUTS:
            raise BadRequest(
                f"the inputs have {size} bytes together, and at most {LARGEST_INPUTS} are taken", param="inputs"
            )
        wrong = next((name for name in body.inputs if not re.fullmatch(r"[\w.-]{1,100}", name)), None)
        if wrong is not None:
            raise BadRequest(f"{wrong[:40]!r} names no input: letters, digits and . _ - do", param="inputs")
        if not body.instruction.strip():
            raise BadRequest("the instruction is empty", param="instruction")
        if body.session is not None and not (body.session.isascii() and body.session.isprintable()):
            raise BadRequest("`session` has printable ASCII characters: it is sent as a header", param="session")
        policy = None if body.policy == AUTO else body.policy
        if policy is not None and not _is_version_of(body.role, policy):
            raise BadRequest(
                f"`policy` names a version of the role, such as `{body.role}@3`, or is `auto`", param="policy"
            )
        return Workflow(
            workflow_id=_id_of(body.workflow_id),
            role=body.role,
            instruction=body.instruction,
            budget_usd=body.budget_usd,
            deadline_s=body.deadline_s,
            left_s=body.deadline_s,
            created_at=self.now(),
            holder="",
            seed=secrets.token_hex(16),
            order=digest_of(msgspec.json.encode([body.instruction, body.inputs], order="sorted").decode()),
            asked_policy=policy,
            user_ref=user_ref(self.user_key, body.user),
            session=body.session,
        )

    async def list_workflows(self, caller: Caller) -> WorkflowsOut:
        """Workflows of the last day, the newest first."""
        newest = await self.store.newest(LISTED, partial(_may_see, caller))
        return WorkflowsOut(workflows=[shown(workflow, {}, brief=True) for workflow in newest])

    async def get_workflow(self, workflow_id: str, caller: Caller) -> WorkflowOut:
        """A workflow as it stands."""
        return await self._shown(await self._require(workflow_id, caller))

    async def cancel_workflow(self, workflow_id: str, caller: Caller) -> WorkflowOut:
        """End a workflow within a second: calls under way are broken off. One that is over stays as it is."""
        workflow = await self._require(workflow_id, caller)
        caller.require(KeyScope.INFER, workflow.role)
        await self.runners.cancel(workflow_id)
        for _ in range(LOOKS):
            workflow = await self._require(workflow_id, caller)
            if workflow.is_over:
                break
            await asyncio.sleep(LOOK_S)
        return await self._shown(workflow)

    async def follow_workflow(self, workflow_id: str, caller: Caller) -> AsyncGenerator[bytes, None]:
        """The workflow as it stands, and again whenever it has changed; ends once it is over."""
        await self._require(workflow_id, caller)
        return self._events(workflow_id, caller)

    async def _events(self, workflow_id: str, caller: Caller) -> AsyncGenerator[bytes, None]:
        before: Workflow | None = None
        quiet_s = 0.0
        while True:
            workflow = await self._require(workflow_id, caller)
            quiet_s += POLL_S
            if workflow != before:
                before, quiet_s = workflow, 0.0
                yield b"event: workflow\ndata: " + msgspec.json.encode(await self._shown(workflow)) + b"\n\n"
            elif quiet_s >= HEARTBEAT_S:
                quiet_s = 0.0
                yield b": still here\n\n"
            if workflow.is_over:
                return
            await asyncio.sleep(POLL_S)

    async def _require(self, workflow_id: str, caller: Caller) -> Workflow:
        """Raises `NotFound`, for one of another role, too."""
        entry = await self.store.get(workflow_id) if _is_id(workflow_id) else None
        if entry is None or not _may_see(caller, entry.value.role):
            raise NotFound(f"there is no workflow {workflow_id[:80]} of the last day")
        return entry.value

    async def _shown(self, workflow: Workflow) -> WorkflowOut:
        done = [index for index, step in enumerate(workflow.steps) if step.state == SUCCEEDED]
        return shown(workflow, await self.store.outputs(workflow, done))


@dataclass(frozen=True)
class WorkerRoutes:
    """`/v1/workers` and what is under it."""

    workers: WorkerStore

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/workers/{name}"
        api.route("GET", "/v1/workers", self.list_workers, scope=KeyScope.VIEW)
        api.route("GET", one, self.get_worker, scope=KeyScope.VIEW, errors=UNKNOWN_WORKER)
        api.route("POST", "/v1/workers", self.put_worker, scope=KeyScope.OPERATE, errors=WRONG)
        api.route("POST", f"{one}/remove", self.remove_worker, scope=KeyScope.OPERATE, errors=UNKNOWN_WORKER)

    async def list_workers(self) -> WorkersOut:
        """All workers, by name, with what was measured of them."""
        return WorkersOut(workers=[_worker_out(known) for known in await self.workers.every()])

    async def get_worker(self, name: str) -> WorkerOut:
        """A worker."""
        return _worker_out(await self._require(name))

    async def put_worker(self, body: Worker) -> WorkerOut:
        """Add a worker, or replace the one of its name."""
        check_worker(body)
        if body.url is not None and not is_url(body.url):
            raise BadRequest("the `url` of a tool is http:// or https:// with a host", param="url")
        await self.workers.put(body)
        return _worker_out(await self._require(body.name))

    async def remove_worker(self, name: str) -> WorkerOut:
        """Remove a worker, and what was measured of it."""
        known = await self._require(name)
        await self.workers.remove(name)
        return _worker_out(known)

    async def _require(self, name: str) -> Known:
        known = await self.workers.find(name)
        if known is None:
            raise NotFound(f"there is no worker {name[:80]!r}")
        return known


def shown(workflow: Workflow, outputs: Mapping[int, str], *, brief: bool = False) -> WorkflowOut:
    """A workflow as it is answered; `brief`: as a list has it."""
    steps = [] if brief else [*enumerate(workflow.steps)]
    return WorkflowOut(
        workflow_id=workflow.workflow_id,
        role=workflow.role,
        policy=workflow.policy,
        arm=workflow.claim.arm if workflow.claim else None,
        state=workflow.state,
        instruction=workflow.instruction,
        plan=None if brief else workflow.plan,
        sub_tasks=[
            SubTaskOut(
                index=index,
                state=step.state,
                worker=step.worker if step.state == RUNNING or step.is_over else None,
                run=step.run(),
                output=outputs.get(index),
            )
            for index, step in steps
        ],
        budget_usd=workflow.budget_usd,
        cost_usd=workflow.cost_usd,
        reserved_usd=workflow.reserved_usd,
        warning=workflow.warning,
        error=workflow.error,
        result=None if brief else workflow.result,
        created_at=workflow.created_at,
        ended_at=workflow.ended_at,
        deadline_at=workflow.created_at + timedelta(seconds=workflow.deadline_s),
    )


def _worker_out(known: Known) -> WorkerOut:
    return WorkerOut(worker=known.worker, measured=known.measured)


def _may_see(caller: Caller, role: str) -> bool:
    return caller.allows(KeyScope.VIEW, role) or caller.allows(KeyScope.INFER, role)


def _id_of(given: str | None) -> str:
    """The id of a new workflow. Raises `BadRequest` for one that the gateway would draw no arm by."""
    if given is None:
        return new_id()
    try:
        if (known := uuid.UUID(given)).version == 7:
            return str(known)
    except ValueError:
        pass
    raise BadRequest("`workflow_id` is a UUID of version 7: ids begin with their time", param="workflow_id")


def _is_version_of(role: str, policy: str) -> bool:
    try:
        named = parse_model(policy)
    except ValueError:
        return False
    return named.role == role and named.version is not None


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def http_app(workflows: WorkflowRoutes, workers: WorkerRoutes) -> ControlApi:
    """The application with all routes."""
    api = ControlApi(
        "Ratchet workflows", "Workflows and their workers. Every error is an ErrorOut.", ERRORS, None, LARGEST_BODY
    )
    workflows.add_to(api)
    workers.add_to(api)
    return api


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: Any = None
    return http_app(WorkflowRoutes(unused, unused, None, unused), WorkerRoutes(unused))
