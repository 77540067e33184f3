"""Looks at what a role has, and proposes a training that can start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.core.contract import TrainingRequest
from ratchet.core.contract.snapshot import TRAJECTORIES
from ratchet.core.contract.state import JobState
from ratchet.core.contract.training import Dataset, DatasetFilter, Hyperparameters, RequestMetadata, TrainingConfig
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.datasets.clickhouse_trajectories import Trajectories
from ratchet.core.datasets.domain.labels import counted, labels
from ratchet.core.datasets.domain.pairs import PairRules, select_pairs
from ratchet.core.datasets.domain.selection import Consumed, TrajectoryRules
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.datasets.selector import SnapshotSelector, with_human_share, without_raters
from ratchet.core.errors import Conflict, Rejected
from ratchet.core.preferences.quarantine import Quarantine
from ratchet.core.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.core.rules.training_options import holdout_of
from ratchet.rl_coordinator.jobs.domain.planning import (
    AUTO,
    Plan,
    Shape,
    lasting_ess,
    plan,
    thumbs_of,
    tries_of,
    with_successes,
)
from ratchet.rl_coordinator.jobs.domain.requests import STREAM, Abilities, config_problems
from ratchet.rl_coordinator.jobs.exporter import Exporter, parent_of
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.task_sets import TaskFiles
from ratchet.rl_coordinator.registry import KvPolicies, Policies

PLAIN = TrainingConfig(
    algorithm=AUTO,
    base_model="stable",
    dataset=Dataset(source="clickhouse", sample_size=5000),
    hyperparameters=Hyperparameters(),
)
"""What is planned for where no request says more: a request with nothing but a role."""

NEEDS_TASKS = "it needs a reflector, tasks and a budget: name it yourself"


@dataclass(frozen=True, kw_only=True)
class RoleData:
    """Where the data of a role is read."""

    trajectories: Trajectories
    preferences: Preferences
    snapshots: Snapshots
    selector: SnapshotSelector
    tasks: TaskFiles
    pairs_per_group: int
    quarantine: Quarantine


@dataclass(frozen=True)
class Planner:
    """Proposes algorithm and data; holds nothing."""

    store: KvJobs
    policies: KvPolicies
    data: RoleData
    abilities: Abilities
    exporter: Exporter
    """What chooses the data of a job, and says why a proposal could not start."""

    async def plan(
        self, role: str, asked: TrainingConfig | None = None, held_out: float | None = None, holdout: float = 0.0
    ) -> tuple[Shape, Plan]:
        """What a role has that a request lets through, and the proposal for it. Raises `Unavailable`.

        A proposal was tried: its job has options that its algorithm takes, and data that it can learn from. Without a
        request it is for one of nothing but a role and, where that is given, `held_out` of its filter. `holdout`: the
        share of its data that a request holds out.
        """
        is_request = asked is not None
        if asked is None:
            asked = replace(PLAIN, dataset=replace(PLAIN.dataset, filter=DatasetFilter(held_out=held_out)))
        policies = await self.policies.policies_of(role)
        consumed = await asyncio.to_thread(self.data.snapshots.consumed, policies.consumed_snapshots())
        shape = await self._shape(role, asked, policies, consumed)
        impossible: dict[str, str] = {}
        if is_request:  # to be made whole without asking back
            impossible |= {name: NEEDS_TASKS for name, algorithm in ALGORITHMS.items() if algorithm.writes_bundle}
        return shape, await self.tried(shape, role, asked, holdout, impossible)

    async def tried(
        self, shape: Shape, role: str, asked: TrainingConfig, holdout: float, impossible: Mapping[str, str]
    ) -> Plan:
        """The first proposal for such data whose job could start. `impossible`: algorithms that are none, with reasons.

        Raises `Unavailable`.
        """
        while True:
            proposal = plan(shape, self.abilities.algorithms, impossible)
            if proposal.chosen is None or ALGORITHMS[proposal.chosen.algorithm].writes_bundle:
                return proposal
            problem = await self._problem(role, _planned(asked, proposal), holdout)
            if problem is None:
                return proposal
            impossible = {**impossible, proposal.chosen.algorithm: problem}

    async def resolved(self, request: TrainingRequest) -> TrainingRequest:
        """The request with the planner's algorithm, data and reasons in the place of `auto`; any other one as it is.

        What its filter names stays. Raises `Conflict`, with the reasons, when nothing can be learnt yet, and `Rejected`
        for a request that no algorithm could make right.
        """
        config = request.training_config
        if config.algorithm != AUTO:
            return request
        reasons = config_problems(config, self.abilities)
        if reasons:
            raise Rejected("; ".join(reasons))
        _, proposal = await self.plan(request.role, config, holdout=holdout_of(request.evaluation))
        if proposal.chosen is None:
            raise Conflict(f"role {request.role}: {proposal.explanation}")
        metadata = request.metadata or RequestMetadata()
        notes = "; ".join(part for part in (metadata.notes, proposal.explanation) if part)
        planned = _planned(config, proposal)
        return replace(request, training_config=planned, metadata=replace(metadata, notes=notes))

    async def _shape(self, role: str, asked: TrainingConfig, policies: Policies, consumed: Consumed) -> Shape:
        chosen, generations = (
            asked.dataset.filter or DatasetFilter(),
            policies.generations(parent_of(policies, asked.base_model)),
        )
        held = await self.exporter.held() if asked.dataset.source == STREAM else None
        candidates = (await self.data.trajectories.catalogue(role, held)).candidates
        gradient = TrajectoryRules(chosen, True, consumed.trajectories, generations)
        opinions = await self.data.preferences.opinions(role)
        chosen = without_raters(chosen, await self.data.quarantine.left_out(role, opinions))
        of_pairs = with_human_share(chosen, self.abilities.amounts)
        pairs = PairRules(of_pairs, consumed.preferences, self.data.pairs_per_group)
        thumbs = labels(counted(await self.data.preferences.thumbs(role), chosen))
        labelled = TrajectoryRules(chosen, False, consumed.labelled, generations)
        up, down = await asyncio.to_thread(thumbs_of, candidates, thumbs, labelled)
        gate = await self.data.tasks.gate_of(role)
        stable = policies.stable
        lineage = list(policies.ancestry(stable.version)) if stable else []
        # The last completed policy gradient of a role's jobs.
        ended = [
            job
            for job in self.store.jobs_of(role)
            if job.state == JobState.COMPLETED
            and dataset_format(job.algorithm) == TRAJECTORIES
            and ALGORITHMS[job.algorithm].needs_token_ids
        ]
        last = max(ended, key=lambda job: job.finished_at or job.updated_at, default=None)
        ess = last.metrics.ess if last and last.metrics else None
        return Shape(
            tries=await asyncio.to_thread(tries_of, candidates, gradient),
            pairs=len((await asyncio.to_thread(select_pairs, opinions, pairs, self.abilities.amounts.most)).chosen),
            thumbs_up=up,
            thumbs_down=down,
            ess=lasting_ess(ess, last.created_at, candidates) if last else None,
            has_imitated=any(policy.algorithm == "sft" for policy in lineage),
            held_out_tasks=len(gate.tasks) if gate else 0,
        )

    async def _problem(self, role: str, config: TrainingConfig, holdout: float) -> str | None:
        """Why a job of this configuration could not start now; None for one that could."""
        reasons = config_problems(config, self.abilities)
        if reasons:
            return "; ".join(reasons)
        try:
            await self.exporter.require_data(role, config, holdout)
        except Rejected as error:
            return str(error)
        return None


def _planned(asked: TrainingConfig, proposal: Plan) -> TrainingConfig:
    assert proposal.chosen is not None  # noqa: S101 - the caller has looked
    chosen = with_successes(asked.dataset.filter, proposal.filter)
    return replace(asked, algorithm=proposal.chosen.algorithm, dataset=replace(asked.dataset, filter=chosen))
