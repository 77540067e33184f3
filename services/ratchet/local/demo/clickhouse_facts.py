"""What the demo asks the warehouse: live traffic, what each version was worth, how a rollout went, the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ratchet.core.stores.history import latest_rewards
from ratchet.core.stores.warehouse import Row, Warehouse
from ratchet.local.demo.exams import Proportion

RECENT = 100
"""Trajectories behind the live success rate."""

_NOT_HELD_OUT = "ifNull(arm, '') != 'pinned'"
"""The gate's tickets ask for a version by name. No agent ends them, and ten minutes later silence does."""

_REWARDED = """
SELECT uniqExact(trajectory_id) AS number FROM rewards
WHERE role = {role:String} AND trajectory_id NOT IN (
    SELECT trajectory_id FROM trajectories WHERE role = {role:String} AND arm = 'pinned'
)
"""

_TRAFFIC = f"""
SELECT
    (SELECT uniqExact(event_id) FROM turns WHERE role = {{role:String}}) AS calls,
    (SELECT uniqExact(trajectory_id) FROM trajectories WHERE role = {{role:String}} AND {_NOT_HELD_OUT}) AS ended,
    ({_REWARDED}) AS rewarded
"""  # noqa: S608 - all parts are ours

_RECENT = f"""
SELECT
    count() AS trials,
    countIf(t.outcome = 'success') AS successes,
    avgOrNullIf(r.total, r.is_rewarded) AS mean_reward
FROM (
    SELECT trajectory_id, any(outcome) AS outcome, max(ended_at) AS ended_at
    FROM trajectories WHERE role = {{role:String}} AND source = 'assembled' AND {_NOT_HELD_OUT}
    GROUP BY trajectory_id ORDER BY ended_at DESC LIMIT {{recent:UInt32}}
) AS t
LEFT JOIN {latest_rewards("total", "is_rewarded")} AS r ON r.trajectory_id = t.trajectory_id
"""  # noqa: S608 - all parts are ours

_VERSIONS = f"""
SELECT t.version AS version, count() AS trajectories, avgOrNullIf(r.total, r.is_rewarded) AS mean_reward
FROM (
    SELECT trajectory_id, any(policy_version) AS version
    FROM trajectories WHERE role = {{role:String}} AND source = 'assembled' AND arm IN ('stable', 'canary')
    GROUP BY trajectory_id
) AS t
LEFT JOIN {latest_rewards("total", "is_rewarded")} AS r ON r.trajectory_id = t.trajectory_id
GROUP BY version
"""  # noqa: S608 - all parts are ours

_DECISIONS = """
SELECT to_version, verdict, any(from_version) AS from_version, any(reason) AS reason, any(actor) AS actor, min(at) AS at
FROM rollouts WHERE role = {role:String}
GROUP BY rollout_id, decision, to_version, verdict ORDER BY at, decision
"""

_FIRST_SPOILED = """
SELECT min(ended_at) AS at, count() AS spoiled
FROM trajectories FINAL
WHERE role = {role:String} AND policy_version = {version:UInt32} AND arm = 'canary' AND outcome = 'failure'
"""

_LEDGER = "SELECT stream, accounted, stored, dead, lost, missing FROM ledger_balance ORDER BY stream, consumer"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the warehouse holds of the role's live traffic."""

    calls: int = 0
    trajectories: int = 0
    rewards: int = 0
    recent: Proportion | None = None
    """Successes among the newest trajectories."""
    mean_reward: float | None = None
    """Of the same trajectories."""


@dataclass(frozen=True, slots=True)
class VersionTraffic:
    """Live trajectories of one policy version and what they were worth."""

    trajectories: int
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """One decision of the deployer, from its event."""

    version: int
    from_version: int | None
    verdict: str
    reason: str
    actor: str
    at: datetime


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What became of the messages of one stream."""

    stream: str
    accounted: int
    stored: int
    dead: int
    lost: int
    missing: int


class Facts:
    """Queries about one role."""

    def __init__(self, warehouse: Warehouse, role: str) -> None:
        self._warehouse = warehouse
        self._role = role

    async def traffic(self) -> Traffic:
        """Counters, and how the newest trajectories went."""
        (counts,) = await self._rows(_TRAFFIC)
        (recent,) = await self._rows(_RECENT, recent=RECENT)
        measured = Proportion(recent["successes"], recent["trials"]) if recent["trials"] else None
        return Traffic(
            calls=counts["calls"],
            trajectories=counts["ended"],
            rewards=counts["rewarded"],
            recent=measured,
            mean_reward=_number(recent["mean_reward"]),
        )

    async def by_version(self) -> Mapping[int, VersionTraffic]:
        """Live trajectories and their mean reward, by policy version."""
        rows = await self._rows(_VERSIONS)
        return {row["version"]: VersionTraffic(row["trajectories"], _number(row["mean_reward"])) for row in rows}

    async def rewarded(self) -> int:
        """Trajectories that have a reward, without the gate's held-out ones."""
        (row,) = await self._rows(_REWARDED)
        return row["number"]

    async def decisions(self) -> Sequence[RolloutDecision]:
        """Every decision about every rollout, oldest first."""
        return [
            RolloutDecision(
                version=row["to_version"],
                from_version=row["from_version"],
                verdict=row["verdict"],
                reason=row["reason"],
                actor=row["actor"],
                at=row["at"],
            )
            for row in await self._rows(_DECISIONS)
        ]

    async def first_spoiled(self, version: int) -> tuple[datetime, int] | None:
        """When the first canary ticket of `version` ended badly, and how many did; None when none did."""
        (row,) = await self._rows(_FIRST_SPOILED, version=version)
        return (row["at"], row["spoiled"]) if row["spoiled"] else None

    async def ledger(self) -> Sequence[LedgerLine]:
        """The balance of every stream."""
        return [
            LedgerLine(row["stream"], row["accounted"], row["stored"], row["dead"], row["lost"], row["missing"])
            for row in await self._warehouse.rows(_LEDGER)
        ]

    async def _rows(self, sql: str, **parameters: int) -> list[Row]:
        return await self._warehouse.rows(sql, {"role": self._role, **parameters})


def _number(value: float | None) -> float | None:
    """ClickHouse's average of nothing is not a number."""
    return None if value is None or value != value else value  # noqa: PLR0124 - only NaN differs from itself
