"""Walks from a policy back to its data: job, snapshot, trajectories, rewards, opinions, preferences, and its parents.

Rewards and opinions are those that were stored when the snapshot was made: what comes later taught the policy nothing.
A piece that is missing on the way (a pruned job, an expired snapshot) is named, and ends that branch only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.core.contract import TrainingDispatch
from ratchet.core.contract.http import models as parts
from ratchet.core.contract.snapshot import SnapshotManifest
from ratchet.core.contract.state import Job, PolicyVersion
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.stores.warehouse import Row
from ratchet.rl_coordinator.registry.clickhouse_lineage import PastJob, PolicyHistory
from ratchet.rl_coordinator.registry.domain import Policies
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies

COUNTED = 10_000
"""Rewards and opinions are counted over so many trajectories of a snapshot: 40 queries each."""
RATERS, FUNCTIONS = 100, 50
"""Longest lists of raters and reward functions."""


@dataclass(frozen=True, slots=True)
class Page:
    """Which trajectories and preferences are listed one by one, and how many ancestors are walked to."""

    offset: int = 0
    limit: int = 20
    parents: int = 0


@dataclass(frozen=True)
class Provenance:
    """Reads; holds nothing."""

    policies: KvPolicies
    jobs: Bucket[Job]
    snapshots: Snapshots
    history: PolicyHistory

    async def trace(self, role: str, version: int, page: Page) -> parts.LineageOut:
        """The lineage of one policy. Raises `NotFound` for an unknown one, `Unavailable` while a store is away."""
        return await self._walk(await self.policies.policies_with(role, version), version, page, frozenset())

    async def _walk(self, policies: Policies, version: int, page: Page, seen: frozenset[int]) -> parts.LineageOut:
        policy, missing = policies.versions[version], list[str]()
        role = policy.role
        job, job_part = await self._job(policy, missing)
        manifest, snapshot = await self._snapshot(policy, job, missing)
        ids, preferences = (manifest.trajectories, manifest.preferences or []) if manifest else ([], [])
        listed = parts.TrajectoriesPage(total=0, offset=page.offset, items=[])
        rewards, feedback = dict[str, Row](), list[Row]()
        if manifest is not None:
            known_by = manifest.created_at
            listed = await self._trajectories(role, ids, known_by, page, missing)
            rewards = await self.history.rewards(role, ids[:COUNTED], known_by)
            feedback = await self.history.feedback(role, ids[:COUNTED], known_by)
        parent = None
        if page.parents > 0 and policy.parent is not None and policy.parent not in seen:
            if policy.parent in policies.versions:
                next_page = Page(0, page.limit, page.parents - 1)
                parent = await self._walk(policies, policy.parent, next_page, seen | {version})
            else:
                missing.append(f"its parent {role}@{policy.parent} is not registered any more")
        return parts.LineageOut(
            policy=policies.model(version),
            job=job_part,
            snapshot=snapshot,
            trajectories=listed,
            preferences=await self._preferences(role, preferences, page, missing),
            rewards=reward_functions(rewards.values())[:FUNCTIONS],
            feedback=rater_counts(feedback)[:RATERS],
            announcements=msgspec.convert(await self.history.announcements(role, version), list[parts.EventPart]),
            counted=min(len(ids), COUNTED),
            missing=missing,
            parent=parent,
        )

    async def _job(self, policy: PolicyVersion, missing: list[str]) -> tuple[Job | None, parts.JobPart | None]:
        """The job that is kept, and how it is shown; a pruned one is shown from the history."""
        job_id = policy.training_job_id
        if job_id is None:
            missing.append(f"{policy.name} names no training job")
            return None, None
        completed = {"completed": policy.cause.event_id} if policy.cause else {}
        entry = await self.jobs.get(job_id)
        if entry is not None:
            job = entry.value
            dispatch = named_id(TrainingDispatch.TOPIC, job_id, job.attempt)
            return job, parts.JobPart(
                training_job_id=job_id,
                algorithm=job.algorithm,
                state=job.state,
                requester=job.request.requester,
                trigger_reason=job.request.trigger_reason,
                created_at=job.created_at,
                finished_at=job.finished_at,
                attempt=job.attempt,
                events={"request": job.request.event_id, "dispatch": dispatch, **completed},
            )
        past = await self.history.pruned_job(policy.role, job_id)
        if past is None:
            missing.append(f"job {job_id} is neither kept nor in the history")
            return None, None
        return None, _pruned_job(job_id, past, completed)

    async def _snapshot(
        self, policy: PolicyVersion, job: Job | None, missing: list[str]
    ) -> tuple[SnapshotManifest | None, parts.SnapshotPart | None]:
        of_job = job.snapshot if job else None
        digest = policy.dataset_digest or (of_job.digest if of_job else None)
        if digest is None:
            missing.append(f"nothing says which snapshot {policy.name} was trained on")
            return None, None
        ref = of_job if of_job and of_job.digest == digest else self.snapshots.ref(digest)
        try:
            manifest = await asyncio.to_thread(self.snapshots.manifest, ref)
        except NotFound:
            missing.append(f"snapshot {digest} is not in the object store any more")
            return None, None
        except (DigestMismatch, Rejected) as error:
            missing.append(f"snapshot {digest} cannot be read: {error}")
            return None, None
        members = {**msgspec.structs.asdict(manifest), "raters": manifest.raters or {}}
        members.update(uri=ref.uri, digest=ref.digest)
        shown = {name: members[name] for name in parts.SnapshotPart.__struct_fields__}
        return manifest, msgspec.convert(shown, parts.SnapshotPart)

    async def _trajectories(
        self, role: str, ids: Sequence[str], known_by: datetime, page: Page, missing: list[str]
    ) -> parts.TrajectoriesPage:
        listed = ids[page.offset : page.offset + page.limit]
        stored = await self.history.trajectories(role, listed)
        rewards = await self.history.rewards(role, listed, known_by)
        _note_absent(missing, "trajectories", listed, stored)
        rows = [{"trajectory_id": name, **stored.get(name, {})} for name in listed]
        for row in rows:
            reward = rewards.get(row["trajectory_id"])
            row["reward"] = msgspec.convert(reward, parts.RewardPart) if reward else None
        items = msgspec.convert(rows, list[parts.TrajectoryPart])
        return parts.TrajectoriesPage(total=len(ids), offset=page.offset, items=items)

    async def _preferences(
        self, role: str, ids: Sequence[str], page: Page, missing: list[str]
    ) -> parts.PreferencesPage:
        listed = ids[page.offset : page.offset + page.limit]
        stored = await self.history.preferences(role, listed)
        _note_absent(missing, "preferences", listed, stored)
        rows = [{"preference_id": name, **stored.get(name, {})} for name in listed]
        items = msgspec.convert(rows, list[parts.PreferencePart])
        return parts.PreferencesPage(total=len(ids), offset=page.offset, items=items)


def reward_functions(rewards: Iterable[Row]) -> list[parts.RewardsPart]:
    """By reward function, the most used first: how many trajectories it scored, their mean, the newest revision."""
    totals: dict[str, list[float]] = {}
    revisions: dict[str, int] = {}
    for row in rewards:
        name = str(row["function"]).strip() or "unnamed"
        totals.setdefault(name, []).append(row["total"])
        revisions[name] = max(revisions.get(name, 0), row["revision"])
    return [
        parts.RewardsPart(
            function=name,
            trajectories=len(values),
            mean=sum(values) / len(values),
            newest_revision=revisions[name],
        )
        for name, values in sorted(totals.items(), key=lambda one: (-len(one[1]), one[0]))
    ]


def rater_counts(feedback: Iterable[Row]) -> list[parts.RaterPart]:
    """How often each rater gave each kind of feedback, the most frequent first; equal combinations are added up."""
    counts: Counter[tuple[str | None, str | None, str]] = Counter()
    for row in feedback:
        counts[(row["rater"], row["source"], row["kind"])] += row["count"]
    ordered = sorted(counts.items(), key=lambda one: (-one[1], *(part or "" for part in one[0])))
    return [
        parts.RaterPart(rater=rater, source=source, kind=kind, count=count) for (rater, source, kind), count in ordered
    ]


def _note_absent(missing: list[str], what: str, listed: Sequence[str], stored: Collection[str]) -> None:
    absent = [name for name in listed if name not in stored]
    if absent:
        missing.append(f"{len(absent)} of the {len(listed)} {what} listed here are not stored any more")


def _pruned_job(job_id: str, past: PastJob, completed: dict[str, str]) -> parts.JobPart:
    request, last = past.request, past.last
    dispatch = {"dispatch": named_id(TrainingDispatch.TOPIC, job_id, last["attempt"])} if last else {}
    return parts.JobPart(
        training_job_id=job_id,
        algorithm=request["algorithm"],
        state=last["status"] if last else "unknown",
        requester=request["requester"],
        trigger_reason=request["trigger_reason"],
        created_at=request["at"],
        finished_at=last["at"] if last else None,
        attempt=last["attempt"] if last else None,
        from_history=True,
        events={"request": request["event_id"], **dispatch, **completed},
    )
