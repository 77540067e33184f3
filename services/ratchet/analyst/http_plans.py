"""The HTTP API of plans: look at them, approve or reject them, and read what a week brought.

A key with `view` of a role sees its plans; `operate`, as of rollouts, decides about them, and of a training `train`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from ratchet.analyst.domain.plan import EXECUTING, REJECTED, approved, stepped
from ratchet.analyst.domain.report import weekly_report
from ratchet.analyst.domain.trail import step_event
from ratchet.analyst.domain.windows import LENGTHS
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.kv_plans import PlanStore
from ratchet.analyst.mining.texts import sentence_of
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.waiting import Waiting
from ratchet.bus.kv import Entry
from ratchet.core.contract.http.analyst import DecisionIn, LearningReportOut, PlanOut, PlansOut
from ratchet.core.contract.learning import PLAN_STATES, AdaptationPlan
from ratchet.core.errors import BadRequest, NotFound, WrongState
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.control_api import ControlApi

UNKNOWN_ROLE = {404: "The role has no recent trajectory, and no pattern or plan."}
UNKNOWN = {404: "There is no such plan."}
DECIDED = {
    **UNKNOWN,
    400: "The body is not what this document says.",
    409: "Its state does not allow it, or another writer changed it meanwhile.",
}
RoleName = Annotated[str, Field(pattern=f"^{ROLE.pattern}$", description="A role.")]
PlanState = Annotated[str, Field(pattern=f"^({'|'.join(PLAN_STATES)})$", description="Only of this state.")]


@dataclass(frozen=True)
class PlanRoutes:
    """`/v1/plans` and what is under it, and the report."""

    store: PlanStore
    patterns: PatternStore
    trail: Trail
    waiting: Waiting
    is_known: Callable[[str], Awaitable[bool]]
    """Whether a role has trajectories."""
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/plans/{role}/{plan_id}"
        api.route("GET", "/v1/plans", self.list_plans, scope=KeyScope.VIEW, errors=UNKNOWN_ROLE, reads=True)
        api.route("GET", one, self.get_plan, scope=KeyScope.VIEW, errors=UNKNOWN, reads=True)
        api.route("POST", f"{one}/approve", self.approve_plan, scope=KeyScope.OPERATE, errors=DECIDED)
        api.route("POST", f"{one}/reject", self.reject_plan, scope=KeyScope.OPERATE, errors=DECIDED)
        api.route("GET", "/v1/learning/{role}/report", self.get_report, scope=KeyScope.VIEW, errors=UNKNOWN_ROLE)

    async def list_plans(
        self, roles: RoleSet, role: RoleName | None = None, state: PlanState | None = None
    ) -> PlansOut:
        """Plans, the newest first."""
        entries = await self.store.every(lambda name: name in roles and role in (None, name))
        if role is not None and not entries:
            await require_known(role, self.is_known)
        plans = [entry.value for entry in entries if state in (None, entry.value.state)]
        return PlansOut(plans=plans[::-1])

    async def get_plan(self, role: RoleName, plan_id: str) -> PlanOut:
        """A plan, and the pattern that it is for."""
        return await self._shown((await self._require(role, plan_id)).value)

    async def approve_plan(self, role: RoleName, plan_id: str, body: DecisionIn, caller: Caller) -> PlanOut:
        """Have a draft carried out: by the deployer's gates and canary, or as a training."""
        entry = await self._require(role, plan_id)
        if entry.value.change.kind == "training":
            caller.require(KeyScope.TRAIN, role)
        reason = sentence_of(body.reason) or None if body.reason is not None else None
        return await self._write(entry, approved(entry.value, self.now(), caller.actor(), reason))

    async def reject_plan(self, role: RoleName, plan_id: str, body: DecisionIn, caller: Caller) -> PlanOut:
        """Do not carry a plan out, nor another one for its pattern."""
        reason = sentence_of(body.reason or "")
        if not reason:
            raise BadRequest("to reject a plan say why", param="reason")
        entry = await self._require(role, plan_id)
        is_begun = entry.value.policy is not None or entry.value.job_id is not None
        if entry.value.state == EXECUTING and is_begun:
            raise WrongState(
                f"plan {plan_id} is being carried out: `ratchet rollout rollback {role}` ends its canary, and"
                " `ratchet cancel` its training"
            )
        return await self._write(entry, stepped(entry.value, REJECTED, self.now(), caller.actor(), reason))

    async def get_report(self, role: RoleName) -> LearningReportOut:
        """What changed in the last seven days, what it earned, and what was taken back."""
        patterns = [entry.value for entry in await self.patterns.every(lambda name: name == role)]
        plans = [entry.value for entry in await self.store.every(lambda name: name == role)]
        if not patterns and not plans:
            await require_known(role, self.is_known)
        report = weekly_report(role, patterns, plans, self.now())
        return LearningReportOut(
            role=role,
            since=report.since,
            until=report.until,
            markdown=report.markdown(),
            html=report.html(),
            figures=report.figures,
        )

    async def _write(self, entry: Entry[AdaptationPlan], plan: AdaptationPlan) -> PlanOut:
        await self.store.update(plan, entry.revision)
        await self.trail.publish([step_event(plan, len(plan.history) - 1)])
        return await self._shown(plan)

    async def _require(self, role: str, plan_id: str) -> Entry[AdaptationPlan]:
        known = len(plan_id) == 32 and plan_id.isalnum() and plan_id.isascii()
        entry = await self.store.get(role, plan_id) if known else None
        if entry is None:
            raise NotFound(f"the role {role} has no plan {plan_id[:80]!r}")
        return entry

    async def _shown(self, plan: AdaptationPlan) -> PlanOut:
        pattern = await self.patterns.get(plan.role, plan.pattern_id)
        waits_for = await self.waiting.reason(plan)
        return PlanOut(plan=plan, pattern=pattern.value if pattern is not None else None, waits_for=waits_for)


async def require_known(role: str, is_known: Callable[[str], Awaitable[bool]]) -> None:
    """A name without trajectories may be mistyped. Raises `NotFound`."""
    if not await is_known(role):
        raise NotFound(
            f"the role {role} has no trajectory of the last {2 * LENGTHS[-1].days} days: is its name written so?"
        )
