"""Stored trajectories, their rewards and turns, as far as snapshots need them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ratchet.bus.connection import Extent
from ratchet.core.contract.reward import Feedback, Reward
from ratchet.core.contract.trajectory import Trajectory
from ratchet.core.contract.turn import Turn
from ratchet.core.datasets.domain.replay import CapturedTrajectory
from ratchet.core.datasets.domain.rows import words_of
from ratchet.core.datasets.domain.selection import Candidate
from ratchet.core.stores.history import OF_ROLE, History, calls, latest_rewards
from ratchet.core.stores.warehouse import Row, Warehouse

_SINCE = f"{OF_ROLE} AND ingested_at > {{since:DateTime64(3)}}"
_CALLS_SINCE = f"{OF_ROLE} AND ingested_at > {{turns_since:DateTime64(3)}}"
_REWARDED = latest_rewards("total", "confidence", "function", "components", where=_SINCE)

_OF_CALLS = {
    "trainable_calls": "uniqExactIf(c.event_id, c.trainable)",
    "versions": "groupUniqArray(c.policy_version)",
}

_HELD = "startsWith(generation, {made:String}) AND sequence BETWEEN {first:UInt64} AND {last:UInt64}"
"""Whether a trajectory's message is in the stream: a stream that was made anew counts from 1 again."""


def _candidates(since: str) -> str:
    """Rewarded trajectories of a role that were stored since an instant, newest first; a reward computed again later
    replaces the earlier one. Read by the projections by time of storing: what is older costs nothing."""
    return f"""
SELECT
    t.trajectory_id AS trajectory_id,
    coalesce(t.group_key, t.task_id) AS task_key,
    t.ended_at AS ended_at,
    t.source AS source,
    t.domain AS domain,
    t.subordinate_profile AS profile,
    t.turn_count AS turns,
    t.arm AS claimed_arm,
    r.total AS reward,
    r.confidence AS confidence,
    r.function AS reward_function,
    if(mapContains(r.components, 'reward_model'), r.components['reward_model'], NULL) AS model_score,
    u.arms AS arms,
    u.trainable_calls AS trainable_calls,
    u.versions AS versions
FROM (
    SELECT
        trajectory_id, group_key, task_id, ended_at, source, domain, subordinate_profile, turn_count, arm, recorded_as
    FROM trajectories WHERE {since}
    ORDER BY ingested_at DESC LIMIT 1 BY trajectory_id
) AS t
INNER JOIN {_REWARDED} AS r ON r.trajectory_id = t.trajectory_id
LEFT JOIN {calls(_CALLS_SINCE, **_OF_CALLS)} AS u
    ON u.trajectory_id = t.recorded_as
ORDER BY ended_at DESC, trajectory_id DESC
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - all parts are ours


def _waiting(since: str) -> str:
    """Trajectories of a role that were stored since an instant and have no reward yet."""
    return f"""
SELECT uniqExact(trajectory_id) AS waiting FROM trajectories
WHERE {since} AND trajectory_id NOT IN (SELECT trajectory_id FROM rewards WHERE {_SINCE})
"""  # noqa: S608 - as above


def _stored(since: str) -> str:
    """All trajectories of a role that were stored since an instant."""
    return f"SELECT uniqExact(trajectory_id) AS stored FROM trajectories WHERE {since}"  # noqa: S608 - as above


_CAPTURED = f"""
SELECT t.trajectory_id AS trajectory_id, t.task AS task, t.claimed_arm AS claimed_arm, u.arms AS arms, u.began AS began
FROM (
    SELECT trajectory_id, coalesce(group_key, task_id) AS task, arm AS claimed_arm, ingested_at
    FROM trajectories WHERE {_SINCE}
    ORDER BY ingested_at DESC LIMIT 1 BY trajectory_id
) AS t
INNER JOIN {calls(_CALLS_SINCE, began="min(c.at)")} AS u ON u.trajectory_id = t.trajectory_id
ORDER BY has(u.arms, 'pinned') OR ifNull(t.claimed_arm, '') = 'pinned', t.ingested_at DESC, trajectory_id DESC
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - as above
"""Trajectories with gateway calls that were stored since an instant: newest first, but pinned ones last, so that those
of replays and held-out tasks do not hide the agents' own."""

_WATERMARK = (
    "SELECT max(sequence) AS sequence FROM {table}"
    " WHERE role = {{role:String}} AND ingested_at > {{since:DateTime64(3)}}"
)
OPEN = timedelta(days=7)
"""A query reads calls from this long before the first trajectory was stored. A trajectory that was open for longer may
lack its first calls here; the reader of its turns applies the same rules to all of them (`selection.is_left_out`)."""
_STREAM_TABLES = {"RL_TRAJECTORIES": "trajectories", "RL_REWARDS": "rewards", "RL_TURNS": "turns"}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The trajectories to choose from."""

    candidates: Sequence[Candidate]
    unlisted: int
    """Rewarded trajectories beyond the limit of a catalogue; what was stored longer ago is not counted."""
    waiting: int
    """Stored trajectories that have no reward yet and therefore are no candidates."""
    reward_function: str
    """`<name> <version>` of the rewards; several, separated by commas, where they differ."""
    watermarks: Mapping[str, int]
    """Newest stored sequence by stream, read before the candidates: these include everything up to it."""


class Trajectories:
    """Reads the trajectories of one role."""

    def __init__(
        self, warehouse: Warehouse, history_limit: int, history: timedelta, now: Callable[[], datetime]
    ) -> None:
        """A catalogue lists the newest `history_limit` trajectories that were stored within `history`."""
        self._warehouse = warehouse
        self._history_limit = history_limit
        self._span = history
        self._history = History(warehouse)
        self._now = now

    @property
    def reach(self) -> str:
        """How far back a catalogue reaches, for people."""
        days = self._span / timedelta(days=1)
        return f"within the last {days:g} day{'' if days == 1 else 's'}"

    async def catalogue(self, role: str, held: Extent | None = None) -> Catalogue:
        """The newest rewarded trajectories of a role; of those alone that their stream holds, where it is given."""
        since, where = self._now() - self._span, _SINCE if held is None else f"{_SINCE} AND {_HELD}"
        within: dict[str, Any] = {} if held is None else {"made": held.made, "first": held.first, "last": held.last}
        watermarks: dict[str, int] = {}
        for stream, table in _STREAM_TABLES.items():
            (row,) = await self._warehouse.rows(_WATERMARK.format(table=table), {"role": role, "since": since})
            watermarks[stream] = int(row["sequence"])
        stored_since = {"role": role, "since": since, **within}
        bounds = {**stored_since, "limit": self._history_limit, "turns_since": since - OPEN}
        rows = await self._warehouse.rows(_candidates(where), bounds)
        waiting = int((await self._warehouse.rows(_waiting(where), stored_since))[0]["waiting"])
        stored = int((await self._warehouse.rows(_stored(where), stored_since))[0]["stored"])

        def read() -> tuple[list[Candidate], str]:
            return [_candidate(row) for row in rows], ", ".join(sorted({str(row["reward_function"]) for row in rows}))

        candidates, functions = await asyncio.to_thread(read)
        return Catalogue(candidates, max(0, stored - waiting - len(rows)), waiting, functions, watermarks)

    async def captured(self, role: str, since: datetime, limit: int) -> list[CapturedTrajectory]:
        """The newest trajectories that were stored since an instant and have calls; some may have begun before it."""
        bounds = {"since": since, "turns_since": since - OPEN, "limit": limit}
        rows = await self._warehouse.rows(_CAPTURED, {"role": role, **bounds})
        return [CapturedTrajectory(row["trajectory_id"], row["task"], row["began"], _arms(row)) for row in rows]

    async def trajectories(self, role: str, ids: Sequence[str]) -> dict[str, Trajectory]:
        """Stored trajectories by id."""
        trajectories = await self._history.messages("trajectories", Trajectory, role, ids)
        return {trajectory.trajectory_id: trajectory for trajectory in trajectories}

    async def words(self, role: str, ids: Sequence[str]) -> dict[str, list[str]]:
        """What was said of each trajectory: feedback, the reasons of its newest reward, and errors of its calls."""
        feedback: dict[str, list[Feedback]] = {}
        for opinion in sorted(
            await self._history.messages("feedback", Feedback, role, ids), key=lambda opinion: opinion.at
        ):
            feedback.setdefault(opinion.trajectory_id, []).append(opinion)
        rewards = await self._history.messages("rewards", Reward, role, ids)
        newest = {
            reward.trajectory_id: reward
            for reward in sorted(rewards, key=lambda reward: (reward.timestamp, reward.revision))
        }
        turns = await self.turns_of(role, (await self.trajectories(role, ids)).values())
        return {key: words_of(feedback.get(key, ()), newest.get(key), turns.get(key, ())) for key in ids}

    async def turns(self, role: str, ids: Sequence[str]) -> dict[str, list[Turn]]:
        """Stored turns by the id under which the gateway recorded them."""
        turns: dict[str, list[Turn]] = {trajectory_id: [] for trajectory_id in ids}
        for turn in await self._history.messages("turns", Turn, role, ids):
            turns[turn.trajectory_id].append(turn)
        return turns

    async def turns_of(self, role: str, trajectories: Iterable[Trajectory]) -> dict[str, list[Turn]]:
        """By trajectory, all turns that were recorded with its own: those of further conversations of its run too."""
        recorded = {
            trajectory.trajectory_id: trajectory.recorded_as or trajectory.trajectory_id for trajectory in trajectories
        }
        turns = await self.turns(role, sorted(set(recorded.values())))
        return {trajectory_id: turns[recorded_as] for trajectory_id, recorded_as in recorded.items()}


def _candidate(row: Row) -> Candidate:
    return Candidate(
        trajectory_id=row["trajectory_id"],
        task_key=row["task_key"],
        ended_at=row["ended_at"],
        reward=row["reward"],
        confidence=row["confidence"],
        source=row["source"],
        domain=row["domain"],
        profile=row["profile"],
        turns=row["turns"],
        arms=_arms(row),
        trainable_calls=row["trainable_calls"],
        versions=frozenset(row["versions"]),
        model_score=row["model_score"],
    )


def _arms(row: Row) -> frozenset[str]:
    """The arms of the calls, and the one that the trajectory claims."""
    claimed = [row["claimed_arm"]] if row["claimed_arm"] else []
    return frozenset([*claimed, *row["arms"]])
