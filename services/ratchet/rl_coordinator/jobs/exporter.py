"""From a job to its snapshot, before it is dispatched: choose the data that it asks for, make the rows, store them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec
import structlog
from msgspec.structs import replace

from ratchet.bus.connection import Extent
from ratchet.core.contract.http.jobs import PreviewOut
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.snapshot import PAIRS, SNAPSHOT, TRAJECTORIES, SnapshotHeader, SnapshotManifest
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import SnapshotRef, TrainingConfig, TrainingRequest
from ratchet.core.datasets.domain.reward_groups import RewardTally
from ratchet.core.datasets.domain.rows import tries_in
from ratchet.core.datasets.domain.selection import pending_rewards_note
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.datasets.selector import SnapshotPlan, SnapshotQuery, SnapshotSelector
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.rules.algorithms import ALGORITHMS, dataset_format
from ratchet.core.rules.training_options import (
    held_out_tasks,
    holdout_of,
    most_steps,
    ramp_problem,
    split_problem,
    too_few_steps,
)
from ratchet.core.stores.policies import BlobStore, weights_behind
from ratchet.rl_coordinator import metrics
from ratchet.rl_coordinator.jobs.domain.requests import STREAM
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.jobs.task_sets import TaskFiles
from ratchet.rl_coordinator.registry import KvPolicies, Policies, StartingPoint

log = structlog.get_logger()

WITHOUT_JOB = ""
"""In a manifest, in the place of a job's id."""
CHUNK = 250
"""Trajectories that are read from the warehouse at a time."""
ALREADY_CHOSEN = "dataset.snapshot is given: there is nothing to choose"


@dataclass(frozen=True, slots=True)
class Export:
    """A finished snapshot."""

    snapshot: SnapshotRef
    rows: int
    """Trajectories, or preference pairs."""


@dataclass(frozen=True)
class Exporter:
    """Makes snapshots. Holds nothing between two exports but manifests that it has read."""

    store: KvJobs
    policies: KvPolicies
    selector: SnapshotSelector
    snapshots: Snapshots
    objects: BlobStore
    tasks: TaskFiles
    now: Callable[[], datetime]
    held: Callable[[], Awaitable[Extent]]
    """What the stream of trajectories still holds."""

    async def prepare(self, job: Job) -> None:
        """Store the queued job with its data exported, and a base model that means the same tomorrow.

        Raises `Rejected`, with counts by reason, when there is too little data. A snapshot that the request names is
        taken as it is; one of another role is refused.
        """
        policies = await self.policies.policies_of(job.role)
        config = job.request.training_config
        start = starting_point(policies, config)
        base_model = start.base_model
        bundles = {policy.uri for policy in policies.versions.values() if policy.kind == BUNDLE}
        if ALGORITHMS[config.algorithm].trains_weights and base_model in bundles:
            base_model = await asyncio.to_thread(self._weights_behind, base_model)
        if config.dataset.snapshot is not None:
            ref, least = config.dataset.snapshot, config.dataset.min_rows or 0
            manifest = await asyncio.to_thread(own_snapshot, self.snapshots, ref, job.role, config.algorithm)
            if manifest.rows < least:
                raise Rejected(f"dataset.snapshot holds {manifest.rows} rows, dataset.min_rows is {least}")
            export = Export(ref, manifest.rows)
        else:
            export = await self._export(job.request, job.training_job_id, policies, start.parent)
        if problem := ramp_refusal(config, export.rows, holdout_of(job.request.evaluation)):
            raise Rejected(problem)
        dataset = replace(config.dataset, snapshot=export.snapshot)
        resolved = replace(config, base_model=base_model, dataset=dataset)

        def prepared(current: Job) -> Job:
            if current.state != JobState.QUEUED:
                return current
            return replace(
                current,
                request=replace(job.request, training_config=resolved),
                snapshot=export.snapshot,
                parent=start.parent,
                trajectories=export.rows,
                updated_at=self.now(),
            )

        await self.store.change_job(job.training_job_id, prepared)

    def _weights_behind(self, uri: str) -> str:
        """See `weights_behind`. Raises `Rejected` for a manifest that is not there, or is another."""
        try:
            return weights_behind(self.objects, uri)
        except (NotFound, DigestMismatch) as error:
            raise Rejected(f"base_model {uri}: {error}") from error

    async def build(self, request: TrainingRequest) -> Export:
        """Store the snapshot that a job for `request` would take at this moment, without a job, for later jobs to name.

        Raises as `prepare` does, and `Rejected` for a request that names its snapshot.
        """
        if request.training_config.dataset.snapshot is not None:
            raise Rejected(ALREADY_CHOSEN)
        policies = await self.policies.policies_of(request.role)
        parent = parent_of(policies, request.training_config.base_model)
        return await self._export(request, WITHOUT_JOB, policies, parent)

    async def _export(self, request: TrainingRequest, job_id: str, policies: Policies, parent: str | None) -> Export:
        config, role = request.training_config, request.role
        with metrics.SNAPSHOT_SECONDS.time():
            query = await self._query(role, config, policies, parent)
            plan = await self.selector.select(query)
            if plan.problem:
                raise Rejected(f"role {role} cannot be trained by {config.algorithm}: {plan.problem}")
            left_out = Counter(plan.left_out)
            with self.snapshots.writer(query.format) as writer:
                for ids in plan.chunks(CHUNK):
                    made = await plan.rows(ids)
                    left_out.update(reason for reason in made if isinstance(reason, str))
                    await asyncio.to_thread(writer.add, [row for row in made if not isinstance(row, str)])
                if writer.rows < plan.minimum:
                    raise Rejected(_shortage(query, plan, writer.rows, left_out))
                header = SnapshotHeader(
                    kind=SNAPSHOT,
                    role=role,
                    training_job_id=job_id,
                    algorithm=query.algorithm,
                    created_at=self.now(),
                    filters=msgspec.to_builtins(plan.filter or query.filter),
                    sample_size=query.dataset.sample_size,
                    reward_function=plan.reward_function,
                    reward_transform=query.reward_transform,
                    watermarks=dict(plan.watermarks),
                    parent_policy=parent,
                )
                sets = await self.tasks.sets_of(role, config.prompts) if config.prompts else None
                snapshot = await asyncio.to_thread(writer.publish, header, dict(left_out), sets)
        for fate, count in {"exported": writer.rows, **left_out}.items():
            metrics.SNAPSHOT_TRAJECTORIES.labels(fate).inc(count)
        log.info("snapshot exported", job=job_id or None, rows=writer.rows, left_out=dict(left_out))
        return Export(snapshot, writer.rows)

    async def require_data(self, role: str, config: TrainingConfig, holdout: float) -> list[str]:
        """What of a job its caller should know before it starts, with `holdout` of its data held out.

        Raises `Rejected` where it would find too little to learn from. Rows are not made: some may be unusable.
        """
        policies = await self.policies.policies_of(role)
        query = await self._query(role, config, policies, parent_of(policies, config.base_model), holdout)
        plan = await self.selector.select(query)
        if (refusal := _refusal(query, config, plan, len(plan.ids), plan.left_out)) is not None:
            raise Rejected(refusal)
        few = too_few_steps(config, _steps(query, config, plan))
        return [few] if few else []

    async def preview(self, request: TrainingRequest) -> PreviewOut:
        """What the snapshot of a job for `request` would hold; all rows are made, and none is stored.

        Raises `Rejected` for a request that names its snapshot: nothing is chosen for it.
        """
        config = request.training_config
        if config.dataset.snapshot is not None:
            raise Rejected(ALREADY_CHOSEN)
        policies = await self.policies.policies_of(request.role)
        query = await self._query(
            request.role,
            config,
            policies,
            parent_of(policies, config.base_model),
            holdout_of(request.evaluation),
        )
        plan = await self.selector.select(query)
        left_out, sources, tally = Counter(plan.left_out), Counter[str](), RewardTally()
        for ids in plan.chunks(CHUNK):
            made = await plan.rows(ids)
            left_out.update(row for row in made if isinstance(row, str))
            taken = [row for row in made if not isinstance(row, str)]
            sources.update(row.origin.source for row in taken)
            tally.update(tries_in(taken))
        rows = sources.total()
        return PreviewOut(
            format=query.format,
            rows=rows,
            left_out=left_out,
            waiting=plan.waiting,
            sources=sources,
            watermarks=dict(plan.watermarks),
            reward_function=plan.reward_function,
            refused=_refusal(query, config, plan, rows, left_out),
            reward_groups=tally.counts() if query.needs_calls else None,
        )

    async def _query(
        self, role: str, config: TrainingConfig, policies: Policies, parent: str | None, holdout: float = 0.0
    ) -> SnapshotQuery:
        """The data that a job asks for, and the data that the stable policy's lineage has already learned from."""
        consumed = await asyncio.to_thread(self.snapshots.consumed, policies.consumed_snapshots())
        held = await self.held() if config.dataset.source == STREAM else None
        generations = policies.generations(parent)
        return SnapshotQuery(role, config.algorithm, config.dataset, consumed, generations, held, holdout)


def own_snapshot(snapshots: Snapshots, ref: SnapshotRef, role: str, algorithm: str) -> SnapshotManifest:
    """The manifest of a snapshot that a request names. Blocking: run it in a thread.

    Raises `Rejected` when there is none of this role that the algorithm learns from, or `ObjectsUnavailable`. Trained
    on the data of another role, a policy would serve what that role learned.
    """
    try:
        manifest = snapshots.manifest(ref)
    except NotFound as error:
        raise Rejected(f"dataset.snapshot {ref.uri} does not exist") from error
    except DigestMismatch as error:
        raise Rejected(f"dataset.snapshot: {error}") from error
    if manifest.role != role:
        raise Rejected(f"dataset.snapshot {ref.uri} is of another role, not of {role}")
    learns_from = dataset_format(algorithm)
    if manifest.format != learns_from:
        raise Rejected(f"dataset.snapshot {ref.uri} holds {manifest.format}: {algorithm} learns from {learns_from}")
    return manifest


def ramp_refusal(config: TrainingConfig, rows: int, holdout: float) -> str | None:
    """Why the ramp of a training on a snapshot of so many rows would not end."""
    steps = steps_of(config, rows - round(holdout * rows))
    return None if steps is None else ramp_problem(config.hyperparameters.warmup_steps, steps)


def starting_point(policies: Policies, config: TrainingConfig) -> StartingPoint:
    """What a job starts from. A search for a bundle needs no policy: calls as agents send them are a start, too."""
    algorithm, stable = ALGORITHMS[config.algorithm], policies.stable
    if not algorithm.trains_weights and (stable is None or not stable.uri):
        return StartingPoint(config.base_model, stable.name if stable else None)
    return policies.starting_point(config.base_model)


def parent_of(policies: Policies, base_model: str) -> str | None:
    """The policy that a job would continue, if it has one now."""
    with suppress(Rejected):
        return policies.starting_point(base_model).parent
    return None


def _refusal(
    query: SnapshotQuery, config: TrainingConfig, plan: SnapshotPlan, rows: int, left_out: Mapping[str, int]
) -> str | None:
    """Why a job would be refused that has so many rows to learn from; None for one that may start."""
    role, algorithm, least = query.role, query.algorithm, plan.minimum
    if plan.problem:
        return f"role {role} cannot be trained by {algorithm}: {plan.problem}"
    if rows < least:
        return _shortage(query, plan, rows, left_out)
    held = held_out_tasks(plan.tasks, query.holdout, config.hyperparameters.seed or 0)
    apart = sum(task in held for task in plan.tasks)
    if query.holdout and (problem := split_problem(query.holdout, rows - apart, apart, plan.nouns[1])):
        return problem
    teaching = min(rows, len(_learnt(plan, config)))
    if teaching >= least and (not teaching or _learnt(plan, config, query.holdout)):
        return ramp_problem(config.hyperparameters.warmup_steps, _steps(query, config, plan))
    which = " that are not held out" if teaching >= least else ""
    return (
        f"only {0 if which else teaching} of {rows} chosen trajectories of role {role}{which} can teach {algorithm},"
        f" which needs at least {least}: the tries of every other task have equal rewards; collect more tries, or tries"
        " of other tasks"
    )


def _learnt(plan: SnapshotPlan, config: TrainingConfig, holdout: float = 0.0) -> list[int]:
    """Places of the ids that a training learns from: tasks that are held out teach nothing, nor do tries of one task
    that are compared and rewarded alike.
    """
    hyper = config.hyperparameters
    taken = held_out_tasks(plan.tasks, holdout, hyper.seed or 0)
    if plan.rewards is not None:
        tries = list(zip(plan.tasks, plan.rewards, strict=True))
        tally = RewardTally()
        tally.update(tries)
        lifted = {task for task, reward in tries if reward} if hyper.advantage_floor else set[str]()
        taken |= tally.alike() - lifted  # a floor lets solved groups teach, too
    return [place for place in range(len(plan.ids)) if not taken or plan.tasks[place] not in taken]


def _steps(query: SnapshotQuery, config: TrainingConfig, plan: SnapshotPlan) -> int:
    """Train steps of the job, if it leaves out no more than is known."""
    learnt = _learnt(plan, config, query.holdout)
    return steps_of(config, len(learnt), sum(plan.turns[place] for place in learnt)) or 0


def steps_of(config: TrainingConfig, rows: int, turns: int | None = None) -> int | None:
    """Train steps of a training on so many rows. Imitation makes up to one row of each of its turns: None where it is
    not known of how many, as in a snapshot.
    """
    algorithm = ALGORITHMS[config.algorithm]
    most = turns if algorithm.learns_from == TRAJECTORIES and not algorithm.needs_token_ids else rows
    return None if most is None else most_steps(config, most)


def _shortage(query: SnapshotQuery, plan: SnapshotPlan, rows: int, left_out: Mapping[str, int]) -> str:
    """Why there is too little to learn from, for people."""
    one, many = plan.nouns
    seen, waiting = rows + sum(left_out.values()), pending_rewards_note(plan.waiting)
    if seen == 0:
        cure = "; `ratchet preferences derive` or `add` brings some" if query.format == PAIRS else ""
        return f"role {query.role} has no stored {one}{waiting}{cure}"
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(left_out.items()))
    usable = f"{rows or 'none'} of {seen} {many} of role {query.role} can be used by {query.algorithm}"
    needed = f", which needs at least {plan.minimum}" if plan.minimum > 1 else ""
    can_be_fewer = query.dataset.min_rows is None and plan.floor < plan.minimum
    few = f"; dataset.min_rows lowers that to {plan.floor}, though fewer pairs show little" if can_be_fewer else ""
    return f"{usable}{needed}{few}{': ' if reasons else ''}{reasons}{waiting}"
