"""Stored trajectories of a window, with their rewards and whether people rated them, page by page.

Of rewards and feedback those count that came within `PROMPT` of the trajectory's end, or of its first reward where that
came later, as in an import: so two windows compare, of which one is older.

What an erasure removed, and who has opted out, is not stored; texts are redacted before they are. Calls that evaluate a
pinned version are no work of agents, and left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from ratchet.analyst.domain.windows import PROMPT, Windows
from ratchet.bus.message import decode
from ratchet.core.contract import Reward, Trajectory
from ratchet.core.stores.history import NEWEST
from ratchet.core.stores.warehouse import Warehouse

if TYPE_CHECKING:
    from ratchet.analyst.mining.features import EpisodeBuilder

PAGE = 1_000
"""Trajectories that are held at a time: some megabytes."""
_WITHIN = "ended_at >= {since:DateTime64(3, 'UTC')} AND ended_at < {until:DateTime64(3, 'UTC')}"
_OWN = f"""
role = {{role:String}} AND {_WITHIN} AND ifNull(arm, '') != 'pinned' AND recorded_as NOT IN (
    SELECT trajectory_id FROM turns
    WHERE role = {{role:String}} AND ingested_at >= {{since:DateTime64(3, 'UTC')}} AND arm = 'pinned'
)
"""  # noqa: S608 - our own names
_ROLES = "SELECT DISTINCT role FROM trajectories WHERE ended_at >= {since:DateTime64(3, 'UTC')} ORDER BY role"
_THROUGH_GATEWAY = (
    "SELECT 1 FROM starts WHERE role = {role:String} AND ingested_at >= {since:DateTime64(3, 'UTC')} LIMIT 1"
)
_COUNT = f"""
SELECT uniqExactIf(trajectory_id, ended_at < {{middle:DateTime64(3, 'UTC')}}) AS before,
    uniqExactIf(trajectory_id, ended_at >= {{middle:DateTime64(3, 'UTC')}}) AS now
FROM trajectories WHERE {_OWN}
"""  # noqa: S608 - as above
_IDS = f"SELECT DISTINCT trajectory_id FROM trajectories WHERE {_OWN} ORDER BY trajectory_id"  # noqa: S608 - as above
_RANGE = "role = {role:String} AND trajectory_id >= {first:String} AND trajectory_id <= {last:String}"
"""Ids grow with time: those between two of a window are few others."""
_BODIES = f"SELECT trajectory_id, body FROM trajectories FINAL WHERE {_RANGE} AND {_WITHIN}"  # noqa: S608 - as above
_LIMITS = f"""(
    SELECT trajectory_id, max(instant) + toIntervalSecond({PROMPT.total_seconds():.0f}) AS until FROM (
        SELECT trajectory_id, ended_at AS instant FROM trajectories WHERE {_RANGE} AND {_WITHIN}
        UNION ALL
        SELECT trajectory_id, min(at) AS instant FROM rewards WHERE {_RANGE} GROUP BY trajectory_id
    ) GROUP BY trajectory_id
)"""  # noqa: S608 - as above
_REWARDS = f"""
SELECT w.trajectory_id AS trajectory_id, argMax(w.body, {NEWEST}) AS body
FROM (SELECT trajectory_id, at, revision, body FROM rewards WHERE {_RANGE}) AS w
INNER JOIN {_LIMITS} AS l ON l.trajectory_id = w.trajectory_id
WHERE w.at <= l.until GROUP BY w.trajectory_id
"""  # noqa: S608 - as above
PEOPLE = ("thumbs", "rating", "correction", "abandoned", "comment", "observation", "error_analysis")
"""Kinds of feedback that people give; the others are of judges, filters and programs."""
_RATED = f"""
SELECT DISTINCT w.trajectory_id AS trajectory_id
FROM (SELECT trajectory_id, at FROM feedback WHERE {_RANGE} AND kind IN {{kinds:Array(String)}}) AS w
INNER JOIN {_LIMITS} AS l ON l.trajectory_id = w.trajectory_id
WHERE w.at <= l.until
"""  # noqa: S608 - as above


@dataclass(frozen=True, slots=True)
class Rated:
    """A trajectory, and what is known of its worth."""

    trajectory: Trajectory
    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    has_feedback: bool = False

    @property
    def documents(self) -> list[str]:
        """Those that were retrieved, by the agent's word: its label `documents`."""
        named = (self.trajectory.labels or {}).get("documents")
        return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def add_all(builder: EpisodeBuilder, page: Sequence[Rated]) -> None:
    """Make episodes of a page."""
    for rated in page:
        builder.add(
            rated.trajectory,
            reward=rated.reward,
            components=rated.components,
            feedback=rated.has_feedback,
            documents=rated.documents,
        )


class StoredEpisodes:
    """Raises what `Warehouse` does."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def roles(self, since: datetime) -> list[str]:
        """Roles of which trajectories ended since then."""
        return [row["role"] for row in await self._warehouse.rows(_ROLES, {"since": since})]

    async def has_starts(self, role: str, since: datetime) -> bool:
        """Whether the gateway began trajectories of a role since then."""
        return bool(await self._warehouse.rows(_THROUGH_GATEWAY, {"role": role, "since": since}))

    async def count(self, role: str, windows: Windows) -> tuple[int, int]:
        """Trajectories of both windows."""
        bounds = {"role": role, "since": windows.since, "middle": windows.middle, "until": windows.until}
        (row,) = await self._warehouse.rows(_COUNT, bounds)
        return int(row["before"]), int(row["now"])

    async def window(self, role: str, since: datetime, until: datetime) -> AsyncIterator[list[Rated]]:
        """Trajectories that ended within a window, in pages."""
        bounds = {"role": role, "since": since, "until": until}
        ids = [row["trajectory_id"] for row in await self._warehouse.rows(_IDS, bounds)]
        async for page in self.chosen(role, ids, since, until):
            yield page

    async def chosen(
        self, role: str, ids: Sequence[str], since: datetime, until: datetime
    ) -> AsyncIterator[list[Rated]]:
        """Of these trajectories those that ended within a window, in pages; ids in their order."""
        bounds = {"role": role, "since": since, "until": until}
        for start in range(0, len(ids), PAGE):
            yield await self._page(ids[start : start + PAGE], bounds)

    async def _page(self, ids: Sequence[str], bounds: Mapping[str, object]) -> list[Rated]:
        asked = {**bounds, "first": ids[0], "last": ids[-1]}
        rewards = {row["trajectory_id"]: row["body"] for row in await self._warehouse.rows(_REWARDS, asked)}
        rated = {row["trajectory_id"] for row in await self._warehouse.rows(_RATED, {**asked, "kinds": [*PEOPLE]})}
        page, own = list[Rated](), set(ids)
        for row in await self._warehouse.rows(_BODIES, asked):
            if (trajectory_id := row["trajectory_id"]) in own:
                body = rewards.get(trajectory_id)
                page.append(_rated(row["body"], body, has_feedback=trajectory_id in rated))
        return page


def _rated(trajectory: str, reward: str | None, *, has_feedback: bool) -> Rated:
    read, known = decode(trajectory.encode(), Trajectory), decode(reward.encode(), Reward) if reward else None
    if known is None:
        return Rated(read, None, has_feedback=has_feedback)
    scored = known.reward_components.items()
    components = {name: component.score for name, component in scored if component.applicable}
    return Rated(read, known.total_reward, components, has_feedback)
