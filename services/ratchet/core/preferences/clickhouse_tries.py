"""Stored tries: which tasks were tried more than once, how the tries ended, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from ratchet.core.contract import Trajectory, Turn
from ratchet.core.datasets.domain.selection import LEFT_OUT_ARMS
from ratchet.core.preferences.rules.base import Try
from ratchet.core.rules.arms import MIXED, PINNED
from ratchet.core.rules.chat import ChatError
from ratchet.core.rules.recorded import lacks_turns, offered_tools, recorded_chat
from ratchet.core.stores.history import OF_ROLE, History, calls, latest_rewards

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Warehouse

_TRIES = f"""
SELECT
    t.trajectory_id AS trajectory_id,
    t.task_key AS task_key,
    t.group_key AS group_key,
    t.domain AS domain,
    t.outcome AS outcome,
    t.verified_by AS verified_by,
    t.arm AS claimed_arm,
    t.rag AS rag,
    r.is_rewarded AS is_rewarded,
    r.total AS reward,
    r.confidence AS confidence,
    u.arms AS arms
FROM (
    SELECT
        * EXCEPT body,
        coalesce(group_key, task_id) AS task_key,
        JSONExtractRaw(body, 'labels', 'rag') AS rag
    FROM trajectories FINAL WHERE {OF_ROLE}
) AS t
LEFT JOIN {latest_rewards("is_rewarded", "total", "confidence")} AS r
    ON r.trajectory_id = t.trajectory_id
LEFT JOIN {calls()} AS u ON u.trajectory_id = t.recorded_as
ORDER BY t.ended_at DESC, t.trajectory_id DESC
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - all parts are ours
"""Trajectories of a role, newest first."""

_EARLIER = f"""
SELECT trajectory_id FROM trajectories
WHERE {OF_ROLE} AND ingested_at > {{since:DateTime64(3)}} AND coalesce(group_key, task_id) = {{task:String}}
    AND trajectory_id != {{id:String}} AND ifNull(arm, '') NOT IN ('{MIXED}', '{PINNED}')
GROUP BY trajectory_id ORDER BY max(ended_at) DESC, trajectory_id DESC LIMIT {{most:UInt32}}
"""  # noqa: S608 - all parts are ours
"""Other tries of a task. Read by the projection by time of storing: what is older costs nothing."""

HISTORY = 200_000
"""Newest trajectories of a role that are looked at."""
TRIES_PER_TASK = 32
"""Newest tries of a task that are compared: comparisons grow with the square."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Tries of one role, without texts, task by task."""

    tasks: Sequence[Sequence[Try]]
    """Only tasks with at least two tries."""
    tries: int
    """All of them, those of tasks that were tried once included."""
    left_out: int
    """Evaluation traffic, tries whose policy changed in flight, and old tries of a task that has many."""


class Tries:
    """Queries over the trajectories of one role at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._history = History(warehouse)

    async def roles(self) -> list[str]:
        """Every role that has trajectories."""
        return await self._history.roles()

    async def listing(self, role: str) -> Listing:
        """What can be compared."""
        rows = await self._warehouse.rows(_TRIES, {"role": role, "limit": HISTORY})
        own = [row for row in rows if not {row["claimed_arm"], *row["arms"]} & LEFT_OUT_ARMS]
        tasks: dict[str, list[Try]] = {}
        for row in own:
            claimed = {"success": True, "failure": False}.get(row["outcome"] or "")
            tried = Try(
                trajectory_id=row["trajectory_id"],
                role=role,
                task_key=row["task_key"],
                group_key=row["group_key"],
                domain=row["domain"],
                reward=row["reward"] if row["is_rewarded"] and row["confidence"] > 0 else None,
                success=claimed if row["verified_by"] else None,  # what only its agent claims counts for nothing
                rag={"true": True, "false": False}.get(str(row["rag"]).strip('"').lower()),
            )
            tasks.setdefault(tried.task_key, []).append(tried)
        compared = [tried[:TRIES_PER_TASK] for tried in tasks.values() if len(tried) > 1]
        old = sum(max(0, len(tried) - TRIES_PER_TASK) for tried in tasks.values())
        return Listing(compared, len(rows), len(rows) - len(own) + old)

    async def with_texts(self, role: str, tries: Sequence[Try]) -> tuple[list[Try], int]:
        """The tries with their chats and tools, and how many cannot be read (their turns are not stored yet)."""
        ids = [tried.trajectory_id for tried in tries]
        stored = {
            message.trajectory_id: message
            for message in await self._history.messages("trajectories", Trajectory, role, ids)
        }
        turns: dict[str, list[Turn]] = {}
        recorded = {trajectory.recorded_as or trajectory.trajectory_id for trajectory in stored.values()}
        for turn in await self._history.messages("turns", Turn, role, recorded):
            turns.setdefault(turn.trajectory_id, []).append(turn)
        readable: list[Try] = []
        for tried in tries:
            trajectory = stored.get(tried.trajectory_id)
            own = turns.get(trajectory.recorded_as or trajectory.trajectory_id, []) if trajectory else []
            if trajectory is None or lacks_turns(trajectory, own):
                continue
            try:
                chat = recorded_chat(trajectory, own)
            except ChatError:
                continue
            if not chat:  # no call was answered: there is nothing to prefer
                continue
            claimed = [trajectory.policy.arm] if trajectory.policy else []
            readable.append(
                replace(
                    tried,
                    messages=chat,
                    tools=offered_tools(trajectory, own),
                    arms=frozenset([*claimed, *(turn.policy.arm for turn in own)]),
                    user_ref=trajectory.user_ref,
                    task_key=trajectory.task_context.group_key or trajectory.task_context.task_id,
                )
            )
        return readable, len(tries) - len(readable)

    async def earlier(self, tried: Try, since: datetime, most: int) -> list[Try]:
        """The newest other tries of its task that were stored since an instant, without texts."""
        rows = await self._warehouse.rows(
            _EARLIER,
            {"role": tried.role, "since": since, "task": tried.task_key, "id": tried.trajectory_id, "most": most},
        )
        return [Try(trajectory_id=row["trajectory_id"], role=tried.role, task_key=tried.task_key) for row in rows]
