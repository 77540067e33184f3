"""Looks at what a role has, and proposes a training."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from msgspec.structs import replace

from ratchet.contract import TrainingRequest
from ratchet.contract.snapshot import TRAJECTORIES
from ratchet.contract.state import Job, JobState
from ratchet.contract.training import RequestMetadata
from ratchet.datasets.clickhouse_trajectories import Trajectories
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Conflict
from ratchet.rl_coordinator.jobs.clickhouse_counts import Counts
from ratchet.rl_coordinator.jobs.domain.planning import AUTO, Plan, Shape, plan, tries_of
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry import KvPolicies
from ratchet.rules.algorithms import ALGORITHMS, dataset_format


class Planner:
    """Proposes algorithm and data; holds nothing."""

    def __init__(
        self,
        *,
        store: KvJobs,
        policies: KvPolicies,
        trajectories: Trajectories,
        counts: Counts,
        snapshots: Snapshots,
        offered: Collection[str],
    ) -> None:
        """`offered`: algorithms that this installation's workers can run."""
        self._store = store
        self._policies = policies
        self._trajectories = trajectories
        self._counts = counts
        self._snapshots = snapshots
        self._offered = offered

    async def plan(self, role: str) -> tuple[Shape, Plan]:
        """What a role has, and the proposal for it. Raises `Unavailable`."""
        policies = await self._policies.policies_of(role)
        catalogue = await self._trajectories.catalogue(role)
        consumed = await asyncio.to_thread(self._snapshots.consumed, policies.consumed_snapshots())
        stable = policies.stable
        lineage = list(policies.ancestry(stable.version)) if stable else []
        up, down = await self._counts.thumbs(role)
        shape = Shape(
            tries=await asyncio.to_thread(tries_of, catalogue.candidates, consumed.trajectories),
            stale_share=await self._counts.share_of_others(role, stable.version) if stable else None,
            pairs=sum((await self._counts.preferences(role)).values()),
            thumbs_up=up,
            thumbs_down=down,
            ess=_last_ess(self._store.all_jobs(), role),
            has_imitated=any(policy.algorithm == "sft" for policy in lineage),
        )
        return shape, plan(shape, self._offered)

    async def resolved(self, request: TrainingRequest) -> TrainingRequest:
        """The request with the planner's algorithm, data and reasons in the place of `auto`; any other one as it is.

        A filter that the request names stays. Raises `Conflict`, with the reasons, when nothing can be learnt yet.
        """
        config = request.training_config
        if config.algorithm != AUTO:
            return request
        _, proposal = await self.plan(request.role)
        if proposal.chosen is None:
            raise Conflict(f"role {request.role}: {proposal.explanation}")
        chosen = config.dataset.filter or proposal.filter
        planned = replace(config, algorithm=proposal.chosen.algorithm, dataset=replace(config.dataset, filter=chosen))
        metadata = request.metadata or RequestMetadata()
        notes = "; ".join(part for part in (metadata.notes, proposal.explanation) if part)
        return replace(request, training_config=planned, metadata=replace(metadata, notes=notes))


def _last_ess(jobs: Collection[Job], role: str) -> float | None:
    """The effective sample size of the role's last completed policy gradient."""
    ended = [job for job in jobs if job.role == role and job.state == JobState.COMPLETED and _is_gradient(job)]
    last = max(ended, key=lambda job: job.finished_at or job.updated_at, default=None)
    return last.metrics.ess if last and last.metrics else None


def _is_gradient(job: Job) -> bool:
    return dataset_format(job.algorithm) == TRAJECTORIES and ALGORITHMS[job.algorithm].needs_token_ids
