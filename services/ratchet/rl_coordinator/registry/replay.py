"""Logged prompts that a candidate has not learned from, for the deployer's shadow replay. Reads; holds nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.datasets.clickhouse_trajectories import Trajectories
from ratchet.datasets.domain.replay import CapturedTrajectory, Lineage, Prompt, prompt_of, reason_against_calls, unseen
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Conflict, DigestMismatch, NotFound, Rejected
from ratchet.rl_coordinator.registry.clickhouse_lineage import PolicyHistory
from ratchet.rl_coordinator.registry.kv_policies import KvPolicies, Policies
from ratchet.rl_coordinator.registry.lineage import ancestry

LOOKED_AT = 10
"""So many times as many trajectories as prompts that are asked for are looked at."""
MOST_LEARNED = 100_000
"""Trajectories of a lineage whose groups are looked up: 400 queries. A larger one is refused."""
LARGEST_ANSWER = 16 * 1024 * 1024
"""Bytes of all prompts of one answer."""
CHUNK = 100
"""Trajectories whose turns are read at a time."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """Prompts with their tasks, newest first, and what was left out, by reason."""

    lineage: Lineage
    prompts: Sequence[tuple[str, Prompt]]
    left_out: Counter[str]


class Replay:
    """Chooses the newest prompts for one candidate."""

    def __init__(
        self, policies: KvPolicies, snapshots: Snapshots, history: PolicyHistory, trajectories: Trajectories
    ) -> None:
        self._policies = policies
        self._snapshots = snapshots
        self._history = history
        self._trajectories = trajectories

    async def prompts(self, role: str, version: int, limit: int) -> Replayable:
        """The newest `limit` prompts, one of each task.

        Raises `NotFound` for an unknown policy, and `Conflict` when nobody can say what its lineage has learned from.
        """
        policies = await self._policies.of(role)
        if version not in policies.versions:
            raise NotFound(f"no such policy: {role}@{version}")
        lineage = await self._lineage(role, policies, version)
        logged = await self._trajectories.captured(role, lineage.since, LOOKED_AT * limit)
        kept, left_out = unseen(logged, lineage)
        return Replayable(lineage, await self._read(role, lineage, kept, limit, left_out), left_out)

    async def _lineage(self, role: str, policies: Policies, version: int) -> Lineage:
        line = list(ancestry(version, policies.versions))
        oldest = line[-1]
        if oldest.parent is not None and oldest.parent not in {one.version for one in line}:
            raise Conflict(f"{oldest.name} continues version {oldest.parent}, which is not registered any more")
        untold = [one.name for one in line if one.training_job_id is not None and one.dataset_digest is None]
        if untold or line[0].dataset_digest is None:
            raise Conflict(f"nothing says which snapshot {(untold or [line[0].name])[0]} was trained on")
        digests = [one.dataset_digest for one in line if one.dataset_digest is not None]
        try:
            made = await asyncio.to_thread(self._snapshots.manifest, self._snapshots.ref(digests[0]))
            trajectories = (await asyncio.to_thread(self._snapshots.consumed, digests)).trajectories
        except (NotFound, DigestMismatch, Rejected) as error:
            raise Conflict(f"what {line[0].name} and its ancestors learned from cannot be read: {error}") from error
        return Lineage(
            versions=[one.version for one in line],
            since=made.created_at,
            trajectories=trajectories,
            groups=await self._groups(role, trajectories),
        )

    async def _groups(self, role: str, trajectories: frozenset[str]) -> frozenset[str]:
        """The tasks of trajectories. Raises `Conflict` when some are not stored any more, or they are too many."""
        if len(trajectories) > MOST_LEARNED:
            raise Conflict(f"the lineage learned from {len(trajectories)} trajectories, more than {MOST_LEARNED}")
        stored = await self._history.trajectories(role, sorted(trajectories))
        if len(stored) < len(trajectories):
            gone = len(trajectories) - len(stored)
            raise Conflict(f"{gone} trajectories of the lineage are not stored any more: their groups are unknown")
        return frozenset(row["task"] for row in stored.values())

    async def _read(
        self, role: str, lineage: Lineage, kept: Sequence[CapturedTrajectory], limit: int, left_out: Counter[str]
    ) -> list[tuple[str, Prompt]]:
        """The prompts of the first trajectories that have one, until there are enough."""
        prompts: list[tuple[str, Prompt]] = []
        size = 0
        for start in range(0, len(kept), CHUNK):
            part = kept[start : start + CHUNK]
            turns = await self._trajectories.turns(role, [one.trajectory_id for one in part])
            for one in part:
                if len(prompts) == limit:
                    return prompts
                calls = turns[one.trajectory_id]
                found = reason_against_calls(calls, lineage) or prompt_of(calls)
                if isinstance(found, str):
                    left_out[found] += 1
                elif size + found.size > LARGEST_ANSWER:
                    left_out["beyond_answer"] += 1
                else:
                    size += found.size
                    prompts.append((one.task, found))
        return prompts
