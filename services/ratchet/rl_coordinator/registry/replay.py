"""Logged prompts for the deployer: those that a candidate has not learned from, for shadow replay, and all of the last
week, to render a bundle with. Reads; holds nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from ratchet.core.contract.http.models import ReplayPromptOut, ReplayPromptsOut, ReplayRequestsOut
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.datasets.clickhouse_trajectories import Trajectories
from ratchet.core.datasets.domain.replay import (
    CapturedTrajectory,
    Lineage,
    Prompt,
    prompt_of,
    reason_against_calls,
    unseen,
)
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS, MIXED_OR_PINNED
from ratchet.core.datasets.s3_snapshots import Snapshots
from ratchet.core.errors import Conflict, DigestMismatch, NotFound, Rejected
from ratchet.rl_coordinator.registry.clickhouse_lineage import PolicyHistory
from ratchet.rl_coordinator.registry.domain import Policies
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies

LOOKED_AT = 10
"""For each prompt that is asked for, so many trajectories are read at most."""
MOST_CONSUMED = 100_000
"""Trajectories of a lineage whose groups are looked up: 400 queries. A larger lineage is refused."""
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of all prompts of one answer."""
WEEK = timedelta(days=7)
CHUNK = 100
"""Trajectories whose turns are read at a time."""


@dataclass(frozen=True)
class Replay:
    """Chooses the newest prompts for one candidate."""

    policies: KvPolicies
    snapshots: Snapshots
    history: PolicyHistory
    trajectories: Trajectories

    async def choose_prompts(self, role: str, version: int, limit: int) -> ReplayPromptsOut:
        """The newest `limit` prompts, one of each task.

        Raises `NotFound` for an unknown policy, and `Conflict` when it is unknown what its lineage has learned from.
        """
        lineage = await self._lineage(role, await self.policies.policies_with(role, version), version)
        captured = await self.trajectories.captured(role, lineage.since, LOOKED_AT * limit)
        kept, left_out = unseen(captured, lineage)
        prompts = await self._read_prompts(role, lineage, kept, limit, left_out)
        return ReplayPromptsOut(
            role=role,
            version=version,
            since=lineage.since,
            lineage=list(lineage.versions),
            prompts=prompts,
            left_out=dict(left_out),
        )

    async def recorded_requests(self, role: str, since: datetime, limit: int) -> ReplayRequestsOut:
        """One request of each of the newest `limit` trajectories that were stored since an instant."""
        captured = await self.trajectories.captured(role, since, LOOKED_AT * limit)
        kept = [trajectory for trajectory in captured if not trajectory.arms & LEFT_OUT_ARMS]
        left_out = Counter({MIXED_OR_PINNED: len(captured) - len(kept)} if len(kept) < len(captured) else {})
        learned = Lineage([], datetime.min.replace(tzinfo=UTC), frozenset(), frozenset())
        requests = await self._read_prompts(role, learned, kept, limit, left_out)
        return ReplayRequestsOut(role=role, since=since, requests=requests, left_out=dict(left_out))

    async def _lineage(self, role: str, policies: Policies, version: int) -> Lineage:
        line = list(policies.ancestry(version))
        if line[0].kind == BUNDLE and line[0].training_job_id is None:  # a person made it, and it learned from nothing
            line = line[1:]
            if not line:
                return Lineage([version], policies.versions[version].created_at - WEEK, frozenset(), frozenset())
        oldest = line[-1]
        if oldest.parent is not None and oldest.parent not in {policy.version for policy in line}:
            raise Conflict(f"{oldest.name} continues version {oldest.parent}, which is not registered any more")
        unknown = [
            policy.name for policy in line if policy.training_job_id is not None and policy.dataset_digest is None
        ]
        if unknown or line[0].dataset_digest is None:
            raise Conflict(f"nothing says which snapshot {(unknown or [line[0].name])[0]} was trained on")
        digests = [policy.dataset_digest for policy in line if policy.dataset_digest is not None]
        try:
            newest = await asyncio.to_thread(self.snapshots.manifest, self.snapshots.ref(digests[0]))
            trajectories = (await asyncio.to_thread(self.snapshots.consumed, digests)).trajectories
        except (NotFound, DigestMismatch, Rejected) as error:
            raise Conflict(f"what {line[0].name} and its ancestors learned from cannot be read: {error}") from error
        # Tasks are known of trajectories that are stored still.
        if len(trajectories) > MOST_CONSUMED:
            raise Conflict(f"the lineage learned from {len(trajectories)} trajectories, more than {MOST_CONSUMED}")
        stored = await self.history.trajectories(role, sorted(trajectories))
        if len(stored) < len(trajectories):
            gone = len(trajectories) - len(stored)
            raise Conflict(f"{gone} trajectories of the lineage are not stored any more: their groups are unknown")
        groups = frozenset(row["task"] for row in stored.values())
        return Lineage([policy.version for policy in line], newest.created_at, trajectories, groups)

    async def _read_prompts(
        self, role: str, lineage: Lineage, kept: Sequence[CapturedTrajectory], limit: int, left_out: Counter[str]
    ) -> list[ReplayPromptOut]:
        """The prompts of the first trajectories that have one, until there are enough."""
        prompts: list[ReplayPromptOut] = []
        size = 0
        for start in range(0, len(kept), CHUNK):
            part = kept[start : start + CHUNK]
            turns = await self.trajectories.turns(role, [trajectory.trajectory_id for trajectory in part])
            for trajectory in part:
                if len(prompts) == limit:
                    return prompts
                calls = turns[trajectory.trajectory_id]
                prompt = reason_against_calls(calls, lineage) or prompt_of(calls)
                if isinstance(prompt, str):
                    left_out[prompt] += 1
                elif size + prompt.size > LARGEST_ANSWER:
                    left_out["beyond_answer"] += 1
                else:
                    size += prompt.size
                    prompts.append(_prompt_out(trajectory.task, prompt))
        return prompts


def _prompt_out(task: str, prompt: Prompt) -> ReplayPromptOut:
    sampling = {
        "temperature": prompt.sampling.temperature,
        "top_p": prompt.sampling.top_p,
        **msgspec.to_builtins(prompt.sampling),
    }
    return ReplayPromptOut(
        turn_id=prompt.turn_id,
        trajectory_id=prompt.trajectory_id,
        task=task,
        at=prompt.at,
        messages=prompt.messages,
        tools=prompt.tools,
        sampling=sampling,
        metadata=prompt.metadata,
    )
