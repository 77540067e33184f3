"""Carries plans out, one step at a time: what it finds, what it asks deployer and coordinator, and what came of it.

A step returns the plan as it is after it, which its caller writes by compare-and-set before the next one. Before
anything is asked of another program the plan says so (`executing`), and what is asked has the plan's idempotency key:
after a kill it is asked for again, and nothing is carried out twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from ratchet.analyst.domain.plan import (
    ANALYST,
    APPROVED,
    EXECUTING,
    REJECTED,
    ROLLED_BACK,
    SUPERSEDED,
    VALIDATED,
    has_helped,
    stepped,
    verdict_of,
)
from ratchet.analyst.effects import Effects, why_unmeasurable
from ratchet.analyst.http_clients import Coordinator, Deployer, key_of, serving
from ratchet.analyst.mining.texts import sentence_of
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.rollouts import RolePoliciesOut, RolloutOut
from ratchet.core.contract.learning import AdaptationPlan
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.contract.training import TrainingConfig
from ratchet.core.errors import Rejected

PROMOTED, TAKEN_BACK, REFUSED, REPLACED = "promoted", "taken back", "refused", "replaced"
ENDINGS: Mapping[str, str] = {
    "promoted": PROMOTED,
    "rolled_back": TAKEN_BACK,
    "withdrawn": TAKEN_BACK,
    "reverted": PROMOTED,
    "refused": REFUSED,
    "aborted": REFUSED,
    "superseded": REPLACED,
}
"""State of a rollout that is over -> what became of its candidate."""
STAGES: Mapping[str, str] = {
    PolicyStage.STABLE: PROMOTED,
    PolicyStage.ARCHIVED: PROMOTED,
    PolicyStage.ROLLED_BACK: TAKEN_BACK,
    PolicyStage.REFUSED: REFUSED,
    PolicyStage.SUPERSEDED: REPLACED,
}
"""The same of a policy whose rollout a newer one has followed."""
WITH_TRAFFIC = frozenset({"running", "paused", "held", "suspended", "soaking"})
REGISTERED_WITHIN = timedelta(days=1)
"""Of a job's end: one of which no policy came by then made none that can be deployed."""
LONGEST_SETTLING = timedelta(hours=1)
"""How long the outcome of a start, and after a rollout those of the last ones, is waited for at most."""
MANY = 5_000
HANDED_OVER: Mapping[str, str] = {
    "note": "Handed to people",
    "held_out_tasks": "Handed to people, who say what the right answers are and add the tasks",
    "reward_weight": "Handed to people, who set the weight, compare, and accept it (`ratchet rewards`)",
}


@dataclass(frozen=True)
class Executing:
    """Raises `Unavailable` where it cannot go on for now."""

    deployer: Deployer
    coordinator: Coordinator
    effects: Effects
    confirm: Callable[[], Awaitable[None]]
    """Asks the broker whether this analyst still leads, before anything is asked of another program. Raises
    `NotLeading`."""
    measure_every: timedelta = timedelta(minutes=5)
    """Between two looks at the effect of a canary: each reads its trajectories. Twelve times that once `MANY` match."""
    _looked: dict[str, datetime] = field(default_factory=dict[str, datetime], init=False)

    async def step(self, plan: AdaptationPlan, now: datetime) -> AdaptationPlan:
        """The plan after one step; the same one while there is nothing to do."""
        try:
            if plan.state == APPROVED:
                return await self._begin(plan, now)
            if plan.state == EXECUTING:
                return await self._go_on(plan, now)
        except Rejected as error:
            return _rejected(plan, now, str(error))
        return plan

    async def _go_on(self, plan: AdaptationPlan, now: datetime) -> AdaptationPlan:
        if plan.policy is not None:
            return await self._follow(plan, plan.policy, now)
        if plan.change.bundle is not None:
            return await self._register(plan, plan.change.bundle)
        if plan.change.training is not None:
            return await self._train(plan, plan.change.training, now)
        to_whom = HANDED_OVER.get(plan.change.kind, "Handed to people")
        verdict = f"{to_whom}: no arms of a canary differ by it, so its effect cannot be measured."
        return stepped(plan, VALIDATED, now, ANALYST, verdict=verdict)

    async def _begin(self, plan: AdaptationPlan, now: datetime) -> AdaptationPlan:
        """Write down what is about to be asked for, once the deployer would register it and no rollout is under way:
        until then the plan stays approved."""
        known = await self.deployer.policies(plan.role)
        if plan.change.bundle is not None:
            _require_base(plan, known)
            rollout = await self.deployer.rollout(plan.role)
            if rollout is not None and rollout.state not in ENDINGS:
                return plan
            await self.deployer.register(plan, plan.change.bundle, dry_run=True)
        return stepped(plan, EXECUTING, now, ANALYST)

    async def _register(self, plan: AdaptationPlan, bundle: Bundle) -> AdaptationPlan:
        """What was asked for before a kill is known by the plan's key: of anything else its base has to serve still."""
        known = await self.deployer.policies(plan.role)
        if not any(policy.idempotency_key == key_of(plan) for policy in known.policies):
            _require_base(plan, known)
        await self.confirm()
        return replace(plan, policy=(await self.deployer.register(plan, bundle)).name)

    async def _train(self, plan: AdaptationPlan, config: TrainingConfig, now: datetime) -> AdaptationPlan:
        if plan.job_id is None:
            await self.confirm()
            return replace(plan, job_id=(await self.coordinator.train(plan, config)).training_job_id)
        job = await self.coordinator.job(plan.job_id)
        known = await self.deployer.policies(plan.role)
        made = next((policy for policy in known.policies if policy.training_job_id == plan.job_id), None)
        if made is not None:
            return replace(plan, policy=made.name)
        if job is None:
            return _rejected(plan, now, f"the job {plan.job_id} is not kept any more, and no policy came of it")
        if job.state in ("failed", "cancelled"):
            why = job.error.message if job.error is not None else "no reason is known"
            return _rejected(plan, now, f"the training {job.state}: {why}")
        ended = job.finished_at if job.state == "completed" else None
        if ended is not None and now - ended > REGISTERED_WITHIN:
            return _rejected(plan, now, f"no policy came of the job {plan.job_id}")
        return plan

    async def _follow(self, plan: AdaptationPlan, policy: str, now: datetime) -> AdaptationPlan:
        """What became of its policy, and meanwhile what its canary shows."""
        rollout = await self.deployer.rollout(plan.role)
        if rollout is None or rollout.candidate.name != policy:
            return await self._follow_by_stage(plan, policy, now)
        if plan.rollout_id != rollout.rollout_id:
            return replace(plan, rollout_id=rollout.rollout_id)
        ending = ENDINGS.get(rollout.state)
        if ending is None:
            return await self._watch(plan, rollout, now)
        if ending in (PROMOTED, TAKEN_BACK) and not _is_settled(rollout, now):
            return plan
        return await self._conclude(plan, ending, rollout.reason, rollout, now)

    async def _follow_by_stage(self, plan: AdaptationPlan, policy: str, now: datetime) -> AdaptationPlan:
        """Of a policy whose rollout is still to come, or was followed by another one before it was looked at."""
        version = _named(await self.deployer.policies(plan.role), policy)
        if version is None:
            return _rejected(plan, now, f"the role has no policy {policy} any more")
        ending = STAGES.get(version.stage)
        if ending is None:
            return plan
        return await self._conclude(plan, ending, version.reason or version.stage, None, now)

    async def _watch(self, plan: AdaptationPlan, rollout: RolloutOut, now: datetime) -> AdaptationPlan:
        """Measure the effect from time to time; a canary that is shown to harm is taken back."""
        looked = self._looked.get(plan.plan_id)
        if rollout.state not in WITH_TRAFFIC or why_unmeasurable(plan) is not None:
            return plan
        is_large = plan.effect is not None and plan.effect.stable + plan.effect.canary >= MANY
        if looked is not None and now - looked < self.measure_every * (12 if is_large else 1):
            return plan
        measured = await self.effects.measure(plan, rollout.rollout_id, rollout.created_at, now, _settling(rollout))
        seen = plan if isinstance(measured, str) else replace(plan, effect=measured)
        if not isinstance(measured, str) and has_helped(seen) is False:
            await self.confirm()
            await self.deployer.roll_back(plan, rollout.rollout_id, verdict_of(measured, plan.expected))
        self._looked[plan.plan_id] = now
        return seen

    async def _conclude(
        self, plan: AdaptationPlan, ending: str, reason: str, rollout: RolloutOut | None, now: datetime
    ) -> AdaptationPlan:
        """The end of a plan whose policy came to an end of its own; None for a rollout that was followed by another."""
        self._looked.pop(plan.plan_id, None)
        if ending == REFUSED:
            return _rejected(plan, now, f"{plan.policy} was refused: {reason}")
        if ending == REPLACED:
            return _rejected(plan, now, f"{SUPERSEDED}another candidate took the place of {plan.policy}: {reason}")
        if plan.rollout_id is None:
            measured = "its rollout is not known any more"
        else:
            since = rollout.created_at if rollout is not None else plan.history[-1].at
            measured = await self.effects.measure(plan, plan.rollout_id, since, now, _settling(rollout))
        if isinstance(measured, str):
            effect, words = None, f"Whether it helped is not known: {measured}."
        else:
            effect, words = measured, verdict_of(measured, plan.expected)
        if ending == TAKEN_BACK:
            verdict = sentence_of(f"Taken back: {reason}. {words}")
            return stepped(plan, ROLLED_BACK, now, ANALYST, sentence_of(reason), effect=effect, verdict=verdict)
        return stepped(plan, VALIDATED, now, ANALYST, effect=effect, verdict=sentence_of(f"Promoted. {words}"))


def _require_base(plan: AdaptationPlan, known: RolePoliciesOut) -> None:
    """A bundle was made from a policy, which has to serve still. Raises `Rejected`."""
    stable = serving(known)
    if (stable.name if stable else None) != plan.change.base:
        serves = stable.name if stable else "none"
        why = f"it was made from {plan.change.base}, and the stable policy is {serves} by now"
        raise Rejected(f"{SUPERSEDED}{why}")


def _named(known: RolePoliciesOut, name: str) -> PolicyVersion | None:
    return next((policy for policy in known.policies if policy.name == name), None)


def _is_settled(rollout: RolloutOut, now: datetime) -> bool:
    """Whether the last trajectories of a canary have had the time that outcomes take."""
    return now - (rollout.finished_at or now) >= _settling(rollout)


def _settling(rollout: RolloutOut | None) -> timedelta:
    """Within which the outcome of a start is due."""
    horizon = rollout.horizon if rollout is not None else None
    return min(timedelta(seconds=horizon.seconds), LONGEST_SETTLING) if horizon is not None else LONGEST_SETTLING


def _rejected(plan: AdaptationPlan, now: datetime, why: str) -> AdaptationPlan:
    return stepped(plan, REJECTED, now, ANALYST, sentence_of(why), verdict=sentence_of(f"Not tried: {why}"))
