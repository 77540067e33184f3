"""Why a plan does not go on: asked of those who would carry it out, whenever a person looks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ratchet.analyst.domain.plan import APPROVED, DRAFT, EXECUTING, changes_policy
from ratchet.analyst.domain.windows import LENGTHS
from ratchet.analyst.executing import ENDINGS
from ratchet.analyst.http_clients import Coordinator, Deployer
from ratchet.analyst.kv_plans import PlanStore
from ratchet.core.contract.http.rollouts import RolloutOut
from ratchet.core.contract.learning import AdaptationPlan
from ratchet.core.errors import RatchetError

NO_GATEWAY = (
    f"no call of the role went through the gateway within {LENGTHS[-1].days} days: a gate refuses the plan unless calls"
    " that its policy can answer come first"
)


@dataclass(frozen=True)
class Waiting:
    """Raises what its members do, but for deployer and coordinator, whose faults are an answer."""

    plans: PlanStore
    deployer: Deployer
    coordinator: Coordinator
    uses_gateway: Callable[[str], Awaitable[bool]]
    """Whether calls of a role go through it."""

    async def obstacle(self, plan: AdaptationPlan) -> str | None:
        """Why a gate would refuse it today: no plan with one approves itself."""
        if not changes_policy(plan) or await self.uses_gateway(plan.role):
            return None
        return NO_GATEWAY

    async def reason(self, plan: AdaptationPlan) -> str | None:
        """What it waits for; None where nothing but a person, or its next step, is due."""
        if plan.state == DRAFT:
            return await self.obstacle(plan)
        if plan.state not in (APPROVED, EXECUTING) or not changes_policy(plan):
            return None
        try:
            if plan.policy is not None:
                return _of_rollout(plan.policy, await self.deployer.rollout(plan.role))
            if plan.job_id is not None:
                job = await self.coordinator.job(plan.job_id)
                return f"its training is {job.state}" if job is not None else None
            return await self._before_it(plan) or (await self.obstacle(plan) if plan.state == APPROVED else None)
        except RatchetError as error:
            return str(error)

    async def _before_it(self, plan: AdaptationPlan) -> str | None:
        for entry in await self.plans.every(lambda name: name == plan.role):
            other = entry.value
            if other.state == EXECUTING and changes_policy(other) and other.plan_id != plan.plan_id:
                return f"plan {other.plan_id} of the role is carried out first"
        rollout = await self.deployer.rollout(plan.role)
        if rollout is None or rollout.state in ENDINGS:
            return None
        return f"the rollout of {rollout.candidate.name} is under way: {rollout.state}"


def _of_rollout(policy: str, rollout: RolloutOut | None) -> str:
    if rollout is None or rollout.candidate.name != policy:
        before = "" if rollout is None or rollout.state in ENDINGS else f" behind {rollout.candidate.name}"
        return f"{policy} waits for its rollout{before}"
    if rollout.state in ENDINGS:
        return f"its rollout is {rollout.state}: outcomes of its last trajectories are waited for"
    arms = rollout.arms
    counted = f"{arms.canary.trajectories} canary and {arms.stable.trajectories} stable trajectories"
    share = f"its rollout is {rollout.state}, with {rollout.weight:.3g} of new trajectories: {counted}"
    return "; ".join(filter(None, (share, *rollout.waiting_for, rollout.progress, rollout.late, rollout.fault)))
