"""From an instruction to a plan: the gateway draws the planner, which plans, or a language model in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from msgspec.structs import replace

from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.workflows import Plan
from ratchet.core.errors import NotFound, Rejected, Unavailable
from ratchet.core.planning.base import Planner
from ratchet.core.planning.plans import check_plan
from ratchet.workflows import metrics
from ratchet.workflows.domain.asking import Asked, CallFailed, most_usd
from ratchet.workflows.domain.workflow import Inputs, Workflow, planned
from ratchet.workflows.held import Held
from ratchet.workflows.parts import Parts, new_id
from ratchet.workflows.planners import CONFIDENT, RESPONSE_FORMAT, plan_by_model

log = structlog.get_logger()
T = TypeVar("T")

PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0


async def patiently(act: Callable[[], Awaitable[T]], what: str) -> T:
    """Do it again while what it needs is away; the caller's deadline ends that."""
    pause_s = PAUSE_S
    while True:
        try:
            return await act()
        except Unavailable as error:
            log.warning("a workflow waits", what=what, reason=str(error))
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


class Planning:
    """Of one workflow."""

    def __init__(self, parts: Parts, held: Held, inputs: Inputs) -> None:
        self._parts = parts
        self._held = held
        self._inputs = inputs

    async def run(self) -> Planner:
        """Have it planned, unless it is. Raises `Rejected`, `NotFound` and `DigestMismatch` where it cannot be."""
        if self._held.workflow.claim is None:
            await self._draw()
        ref = self._held.workflow.planner
        planner = await patiently(lambda: self._parts.planners.find(ref), "a planner's file")
        if self._held.workflow.plan is None:
            plan = await self._plan(planner)
            await self._held.change(lambda workflow: planned(workflow, plan))
        return planner

    async def _draw(self) -> None:
        """Ask the gateway for the planner's policy, which draws the arm and announces the start."""
        workflow = self._held.workflow
        asked, user, session = workflow.asked_policy or workflow.role, self._inputs.user, workflow.session
        try:
            fetched, recorded = await patiently(
                lambda: self._parts.gateway.fetch(asked, workflow.workflow_id, user=user, session=session),
                "the gateway",
            )
        except NotFound:
            if workflow.asked_policy is not None:
                raise
            claim = PolicyClaim(role=workflow.role, version=0, digest="", arm="stable", weight=0.0)
            await self._held.change(lambda now: replace(now, claim=claim, policy=f"{workflow.role}@0"))
            return
        if fetched.version > 0 and fetched.bundle.planner is None:
            await self._held.change(lambda now: replace(now, unrecorded=True))
            raise Rejected(f"{fetched.policy} is no planner: the role {workflow.role} has another use")
        claim = PolicyClaim(
            role=workflow.role,
            version=fetched.version,
            digest=fetched.digest,
            arm=fetched.arm,
            weight=fetched.weight,
        )

        def draw(now: Workflow) -> Workflow:
            return replace(
                now,
                claim=claim,
                policy=fetched.policy,
                planner=fetched.bundle.planner,
                unrecorded=now.unrecorded or not recorded,
            )

        await self._held.change(draw)

    async def _plan(self, planner: Planner) -> Plan:
        workflow = self._held.workflow
        plan, outcome = await asyncio.to_thread(planner.plan, workflow.instruction), "valid"
        try:
            if plan.confidence < CONFIDENT and self._parts.planning_model:
                plan, repaired = await plan_by_model(self._ask, workflow.instruction)
                outcome = "repaired" if repaired else "valid"
            check_plan(plan)
        except CallFailed as error:
            log.warning("the planner's own plan is run", reason=str(error))
        except Rejected:
            metrics.PLANS.labels(workflow.role, "refused").inc()
            raise
        metrics.PLANS.labels(workflow.role, outcome).inc()
        return plan

    async def _ask(self, system: str, text: str) -> str:
        """The planning worker's answer. Raises `CallFailed` where there is none, or no room for it in the budget."""
        known = await patiently(self._parts.registry.every, "the registry")
        name = self._parts.planning_model
        worker = next((each.worker for each in known if each.worker.name == name), None)
        if worker is None:
            raise CallFailed(f"the registry has no worker {name}, which was to plan", again=False, cost_usd=0.0)
        workflow = self._held.workflow
        asked = Asked(
            task_type="planning",
            text=text,
            system=system,
            response_format=RESPONSE_FORMAT,
            trajectory_id=new_id(),
            user=self._inputs.user,
            session=workflow.session,
            unrecorded=workflow.unrecorded,
        )
        most = most_usd(worker, asked)
        if not workflow.has_room(most):
            raise CallFailed("the budget has no room for planning by a model", again=False, cost_usd=0.0)
        await self._held.change(lambda now: replace(now, planning_reserved_usd=most))
        try:
            answer = await self._parts.ask(worker, asked)
        except CallFailed as error:
            cost = most if error.cost_usd is None else error.cost_usd
            await self._held.change(lambda now: _paid(now, cost))
            raise
        cost = most if answer.cost_usd is None else answer.cost_usd
        await self._held.change(lambda now: _paid(now, cost))
        await self._parts.gateway.end(asked.trajectory_id, workflow, success=True)
        return answer.text


def _paid(workflow: Workflow, cost_usd: float) -> Workflow:
    return replace(
        workflow, planning_reserved_usd=0.0, planning_cost_usd=workflow.planning_cost_usd + max(0.0, cost_usd)
    )
