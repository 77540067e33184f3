"""Walks from a policy back to its data: job, snapshot, trajectories, rewards, opinions, preferences, and its parents.

What is missing on the way (a pruned job, an expired snapshot) is named and ends that branch only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ratchet.bus.message import named_id
from ratchet.contract import TrainingDispatch
from ratchet.contract.http.models import (
    EventPart,
    JobPart,
    LineageOut,
    PreferencePart,
    PreferencesPage,
    RaterPart,
    RewardPart,
    RewardsPart,
    SnapshotPart,
    TrajectoriesPage,
    TrajectoryPart,
)
from ratchet.contract.snapshot import SnapshotManifest
from ratchet.contract.state import Job, PolicyVersion
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import DigestMismatch, NotFound, Rejected
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.registry.clickhouse_lineage import PastJob, PolicyHistory
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies, Policies
from ratchet.rl_coordinator.registry.provenance_sums import rater_counts, reward_functions
from ratchet.rl_coordinator.registry.shown import model_out
from ratchet.stores.warehouse import Row

COUNTED = 10_000
"""Rewards and opinions are counted over so many trajectories of a snapshot: 40 queries each."""
RATERS, FUNCTIONS = 100, 50
"""Longest lists of raters and reward functions."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which trajectories and preferences are listed one by one, and how many parents are walked to."""

    offset: int = 0
    limit: int = 20
    parents: int = 0


@dataclass(slots=True)
class _Found:
    """What one walk has met: its missing pieces grow on the way."""

    policy: PolicyVersion
    missing: list[str] = field(default_factory=list[str])


class Provenance:
    """Reads; holds nothing."""

    def __init__(self, policies: KvPolicies, jobs: KvJobs, snapshots: Snapshots, history: PolicyHistory) -> None:
        self._policies = policies
        self._jobs = jobs
        self._snapshots = snapshots
        self._history = history

    async def of(self, role: str, version: int, page: Page) -> LineageOut:
        """The lineage of one policy. Raises `NotFound` for an unknown one, `Unavailable` while a store is away."""
        policies = await self._policies.of(role)
        if version not in policies.versions:
            raise NotFound(f"no such policy: {role}@{version}")
        return await self._walk(policies, version, page, frozenset())

    async def _walk(self, policies: Policies, version: int, page: Page, seen: frozenset[int]) -> LineageOut:
        found = _Found(policies.versions[version])
        role = found.policy.role
        job, past = await self._job(found)
        manifest, snapshot = await self._snapshot(found, job)
        ids, preferences = (manifest.trajectories, manifest.preferences or []) if manifest else ([], [])
        functions, raters = await self._summary(role, ids[:COUNTED])
        parent = None
        if page.parents > 0 and found.policy.parent is not None and found.policy.parent not in seen:
            parent = await self._parent(policies, found, Page(0, page.limit, page.parents - 1), seen | {version})
        return LineageOut(
            policy=model_out(found.policy, policies.route),
            job=_job_part(found.policy, job) if job else _past_part(found.policy, past),
            snapshot=snapshot,
            trajectories=await self._trajectories(role, ids, page, found),
            preferences=await self._preferences(role, preferences, page, found),
            rewards=functions[:FUNCTIONS],
            feedback=raters[:RATERS],
            told=msgspec.convert(await self._history.told(role, version), list[EventPart]),
            counted=min(len(ids), COUNTED),
            missing=found.missing,
            parent=parent,
        )

    async def _parent(self, policies: Policies, found: _Found, page: Page, seen: frozenset[int]) -> LineageOut | None:
        version = found.policy.parent
        assert version is not None  # noqa: S101 - its caller looked
        if version in policies.versions:
            return await self._walk(policies, version, page, seen)
        found.missing.append(f"its parent {found.policy.role}@{version} is not registered any more")
        return None

    async def _job(self, found: _Found) -> tuple[Job | None, PastJob | None]:
        """The job as it is kept, else as the history tells it."""
        policy = found.policy
        if policy.training_job_id is None:
            found.missing.append(f"{policy.name} names no training job")
            return None, None
        try:
            return await self._jobs.get(policy.training_job_id), None
        except NotFound:
            past = await self._history.job(policy.role, policy.training_job_id)
        if past is None:
            found.missing.append(f"job {policy.training_job_id} is neither kept nor in the history")
        return None, past

    async def _snapshot(self, found: _Found, job: Job | None) -> tuple[SnapshotManifest | None, SnapshotPart | None]:
        digest = found.policy.dataset_digest or (job.snapshot.digest if job and job.snapshot else None)
        if digest is None:
            found.missing.append(f"nothing says which snapshot {found.policy.name} was trained on")
            return None, None
        told = job.snapshot if job and job.snapshot and job.snapshot.digest == digest else None
        ref = told or self._snapshots.ref(digest)
        try:
            manifest = await asyncio.to_thread(self._snapshots.manifest, ref)
        except NotFound:
            found.missing.append(f"snapshot {digest} is not in the object store any more")
        except (DigestMismatch, Rejected) as error:
            found.missing.append(f"snapshot {digest} cannot be read: {error}")
        else:
            return manifest, _snapshot_part(manifest, ref)
        return None, None

    async def _summary(self, role: str, ids: Sequence[str]) -> tuple[list[RewardsPart], list[RaterPart]]:
        rewards = (await self._history.rewards(role, ids)).values()
        feedback = await self._history.feedback(role, ids)
        functions = msgspec.convert(reward_functions(rewards), list[RewardsPart])
        return functions, msgspec.convert(rater_counts(feedback), list[RaterPart])

    async def _trajectories(self, role: str, ids: Sequence[str], page: Page, found: _Found) -> TrajectoriesPage:
        shown = ids[page.offset : page.offset + page.limit]
        stored = await self._history.trajectories(role, shown)
        rewards = await self._history.rewards(role, shown)
        _name_absent(found, "trajectories", shown, stored)
        items = [_trajectory_part(name, stored.get(name), rewards.get(name)) for name in shown]
        return TrajectoriesPage(total=len(ids), offset=page.offset, items=items)

    async def _preferences(self, role: str, ids: Sequence[str], page: Page, found: _Found) -> PreferencesPage:
        shown = ids[page.offset : page.offset + page.limit]
        stored = await self._history.preferences(role, shown)
        _name_absent(found, "preferences", shown, stored)
        rows = [{"preference_id": name, **stored.get(name, {})} for name in shown]
        return PreferencesPage(total=len(ids), offset=page.offset, items=msgspec.convert(rows, list[PreferencePart]))


def _name_absent(found: _Found, what: str, shown: Sequence[str], stored: Mapping[str, Row]) -> None:
    absent = [name for name in shown if name not in stored]
    if absent:
        found.missing.append(f"{len(absent)} of the {len(shown)} {what} listed here are not stored any more")


def _job_part(policy: PolicyVersion, job: Job) -> JobPart:
    request = job.request
    dispatch = named_id(TrainingDispatch.TOPIC, job.training_job_id, job.attempt)
    return JobPart(
        training_job_id=job.training_job_id,
        algorithm=job.algorithm,
        state=job.state,
        requester=request.requester,
        trigger=request.trigger_reason,
        created_at=job.created_at,
        finished_at=job.finished_at,
        attempt=job.attempt,
        events={"request": request.event_id, "dispatch": dispatch, **_completed(policy)},
    )


def _past_part(policy: PolicyVersion, past: PastJob | None) -> JobPart | None:
    if past is None or policy.training_job_id is None:
        return None
    job_id, last = policy.training_job_id, past.last
    dispatch = {"dispatch": named_id(TrainingDispatch.TOPIC, job_id, last["attempt"])} if last else {}
    return JobPart(
        training_job_id=job_id,
        algorithm=past.request["algorithm"],
        state=last["status"] if last else "unknown",
        requester=past.request["requester"],
        trigger=past.request["trigger"],
        created_at=past.request["at"],
        finished_at=last["at"] if last else None,
        attempt=last["attempt"] if last else None,
        from_history=True,
        events={"request": past.request["event_id"], **dispatch, **_completed(policy)},
    )


def _completed(policy: PolicyVersion) -> dict[str, str]:
    return {"completed": policy.cause.event_id} if policy.cause else {}


def _snapshot_part(manifest: SnapshotManifest, ref: SnapshotRef) -> SnapshotPart:
    told = {**msgspec.structs.asdict(manifest), "raters": manifest.raters or {}, "uri": ref.uri, "digest": ref.digest}
    return msgspec.convert({name: told[name] for name in SnapshotPart.__struct_fields__}, SnapshotPart)


def _trajectory_part(name: str, stored: Row | None, reward: Row | None) -> TrajectoryPart:
    part = msgspec.convert(reward, RewardPart) if reward else None
    return msgspec.convert({"trajectory_id": name, **(stored or {}), "reward": part}, TrajectoryPart)
