"""The two programs through which plans are carried out, and no other: the deployer and the coordinator, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from ratchet.analyst.domain.plan import ANALYST
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.http.jobs import DatasetIn, JobIn, JobOut, JobsOut, PlanOut
from ratchet.core.contract.http.rollouts import ActIn, BundleIn, BundleOut, RolePoliciesOut, RolloutOut
from ratchet.core.contract.learning import AdaptationPlan
from ratchet.core.contract.state import PolicyVersion, ServedPolicy
from ratchet.core.contract.training import Hyperparameters, TrainingConfig
from ratchet.core.errors import Conflict, NotFound, Rejected, Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer


def peer(name: str, url: str, api_key: str | None) -> Peer:
    """One of them. What a key does not allow may be allowed later, and a proxy answers for a program that is away: that
    is no fault of a plan."""
    return Peer(f"the {name}", url, bearer(api_key), errors={401: Unavailable, 403: Unavailable}, is_ours=True)


def serving(known: RolePoliciesOut) -> ServedPolicy | None:
    """The policy that serves; None where calls go on as agents send them, which is version 0 as well."""
    stable = known.route.stable if known.route is not None else None
    return stable if stable is not None and stable.version > 0 else None


def reason_of(plan: AdaptationPlan) -> str:
    """Why the deployer is asked: its records and the audit log keep it."""
    return f"plan {plan.plan_id}: {plan.change.summary}"


def key_of(plan: AdaptationPlan) -> str:
    """By which deployer and coordinator know that a plan asked already."""
    return f"plan-{plan.plan_id}"


@dataclass(frozen=True)
class Deployer:
    """Raises `Unavailable`, or `Rejected` in the deployer's words."""

    client: AsyncApiClient

    async def policies(self, role: str) -> RolePoliciesOut:
        """A role's route and versions; none of a role that has had none."""
        try:
            return await self.client.ask("GET", f"/v1/policies/{_segment(role)}", RolePoliciesOut)
        except NotFound:
            return RolePoliciesOut(role=role, route=None, policies=[])

    async def bundle(self, role: str, version: int) -> Bundle:
        """What a version changes of calls."""
        return (await self.client.ask("GET", f"/v1/policies/{_segment(role)}/{version}/bundle", BundleOut)).bundle

    async def register(self, plan: AdaptationPlan, bundle: Bundle, *, dry_run: bool = False) -> PolicyVersion:
        """The bundle of a plan as the role's next version: asked for again, it is the same one. `dry_run`: as if."""
        body = BundleIn(
            bundle=bundle, actor=ANALYST, reason=reason_of(plan), idempotency_key=key_of(plan), dry_run=dry_run
        )
        path = f"/v1/policies/{_segment(plan.role)}/bundles"
        answer = await self.client.ask("POST", path, BundleOut, body=body)
        if answer.bundle.instructions != bundle.instructions:
            raise Rejected(f"{answer.policy.name} was registered by the plan's key, and is not its bundle")
        return answer.policy

    async def rollout(self, role: str) -> RolloutOut | None:
        """A role's newest rollout."""
        try:
            return await self.client.ask("GET", f"/v1/rollouts/{_segment(role)}", RolloutOut)
        except NotFound:
            return None

    async def roll_back(self, plan: AdaptationPlan, rollout_id: str, why: str) -> bool:
        """End a plan's canary; False where it has ended, or another one runs."""
        body = ActIn(actor=ANALYST, reason=f"plan {plan.plan_id}: {why}", rollout_id=rollout_id)
        try:
            await self.client.ask("POST", f"/v1/rollouts/{_segment(plan.role)}/rollback", RolloutOut, body=body)
        except Conflict:
            return False
        return True


@dataclass(frozen=True)
class Coordinator:
    """Raises `Unavailable`, or `Rejected` in the coordinator's words."""

    client: AsyncApiClient

    async def proposal(self, role: str) -> PlanOut:
        """What the role would best learn from next."""
        return await self.client.ask("GET", "/v1/plan", PlanOut, query={"role": role})

    async def hyperparameters(self, role: str, algorithm: str) -> Hyperparameters:
        """Those of the role's newest training by an algorithm that came to its end; none where there was none."""
        query = {"role": role, "algorithm": algorithm, "state": "completed", "limit": "1"}
        jobs = (await self.client.ask("GET", "/v1/jobs", JobsOut, query=query)).jobs
        return jobs[0].request.training_config.hyperparameters if jobs else Hyperparameters()

    async def train(self, plan: AdaptationPlan, config: TrainingConfig) -> JobOut:
        """The job of a plan: asked for again, it is the same one."""
        dataset = DatasetIn(
            source=config.dataset.source, sample_size=config.dataset.sample_size, filter=config.dataset.filter
        )
        job = JobIn(
            algorithm=config.algorithm,
            base_model=config.base_model,
            dataset=dataset,
            hyperparameters=config.hyperparameters,
            role=plan.role,
            idempotency_key=key_of(plan),
            requester=ANALYST,
            notes=reason_of(plan),
        )
        try:
            return await self.client.ask("POST", "/v1/jobs", JobOut, body=job)
        except Conflict as error:  # what does not work now would hold up the role's other plans: it is drafted again
            raise Rejected(str(error)) from error

    async def job(self, job_id: str) -> JobOut | None:
        """A job; None once it is not kept any more."""
        try:
            return await self.client.ask("GET", f"/v1/jobs/{_segment(job_id)}", JobOut)
        except NotFound:
            return None


def _segment(name: str) -> str:
    return quote(name, safe="")
