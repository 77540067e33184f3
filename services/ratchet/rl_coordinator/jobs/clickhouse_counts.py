"""How much there is to learn from: for operators, and for requests that may ask for too much."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ratchet.core.contract.training import DatasetFilter
from ratchet.core.stores.history import latest_rewards
from ratchet.core.stores.warehouse import Warehouse

_FRESH = """t.recorded_as NOT IN (
        SELECT trajectory_id FROM turns
        WHERE role = {role:String} AND has({stale:Array(UInt32)}, policy_version) AND NOT empty({stale:Array(UInt32)})
    )"""
_REWARDED = f"""
SELECT countIf(r.is_rewarded) AS stored, countIf(NOT r.is_rewarded) AS waiting, countIf(
    r.is_rewarded
    AND (empty({{sources:Array(String)}}) OR has({{sources:Array(String)}}, t.source))
    AND (empty({{domains:Array(String)}}) OR has({{domains:Array(String)}}, coalesce(t.domain, '')))
    AND NOT has({{profiles:Array(String)}}, coalesce(t.profile, ''))
    AND ({{longest:UInt32}} = 0 OR t.turns <= {{longest:UInt32}})
    AND toUnixTimestamp64Milli(t.ended_at) >= {{start:Int64}} AND toUnixTimestamp64Milli(t.ended_at) < {{end:Int64}}
    AND r.total >= {{min_reward:Float64}} AND r.total <= {{max_reward:Float64}}
    AND {_FRESH}
) AS matching
FROM (
    SELECT trajectory_id, recorded_as, source, toString(domain) AS domain, toString(subordinate_profile) AS profile,
        turn_count AS turns, ended_at
    FROM trajectories FINAL WHERE role = {{role:String}}
) AS t
LEFT JOIN {latest_rewards("total", "is_rewarded")} AS r ON r.trajectory_id = t.trajectory_id
"""  # noqa: S608 - all parts are ours
_PREFERENCES = "SELECT source, uniqExact(event_id) AS n FROM preferences WHERE role = {role:String} GROUP BY source"
_THUMBS = """
SELECT uniqExactIf(event_id, JSONExtractBool(body, 'value')) AS up, uniqExact(event_id) - up AS down
FROM feedback WHERE role = {role:String} AND kind = 'thumbs'
"""
_LOWEST, _HIGHEST, _FIRST_MS, _LAST_MS = -1e300, 1e300, -(2**62), 2**62
"""Stand for limits that were not given."""
LONGEST = 2**31
"""No trajectory has more turns: a larger limit limits nothing."""


@dataclass(frozen=True, slots=True)
class Rewarded:
    """How many trajectories of a role are stored."""

    stored: int
    """With a reward."""
    matching: int
    """Those of them that a filter lets through."""
    waiting: int
    """Without a reward: every trajectory gets one, in a moment while the reward computer runs."""


class Counts:
    """Queries that count and return no rows."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def rewarded(self, role: str, chosen: DatasetFilter, stale: Collection[int] = ()) -> Rewarded:
        """Stored trajectories with and without a reward, and how many the filter lets through.

        `stale`: versions of policies that are too many generations away; what one of them answered does not pass.
        """
        dates = chosen.date_range
        parameters: dict[str, Any] = {
            "role": role,
            "sources": chosen.sources or [],
            "domains": chosen.task_domains or [],
            "profiles": chosen.exclude_subordinate_profiles or [],
            "longest": min(chosen.max_trajectory_length or 0, LONGEST),
            "start": _milliseconds(dates.start if dates else None, _FIRST_MS),
            "end": _milliseconds(dates.end if dates else None, _LAST_MS),
            "min_reward": chosen.min_reward if chosen.min_reward is not None else _LOWEST,
            "max_reward": chosen.max_reward if chosen.max_reward is not None else _HIGHEST,
            "stale": sorted(stale),
        }
        row = (await self._warehouse.rows(_REWARDED, parameters))[0]
        return Rewarded(int(row["stored"]), int(row["matching"]), int(row["waiting"]))

    async def preferences(self, role: str) -> dict[str, int]:
        """Stored preferences of a role by source."""
        return {row["source"]: int(row["n"]) for row in await self._warehouse.rows(_PREFERENCES, {"role": role})}

    async def thumbs(self, role: str) -> tuple[int, int]:
        """Stored thumbs of a role, up and down."""
        row = (await self._warehouse.rows(_THUMBS, {"role": role}))[0]
        return int(row["up"]), int(row["down"])


def _milliseconds(instant: datetime | None, absent: int) -> int:
    return absent if instant is None else round(instant.timestamp() * 1000)
