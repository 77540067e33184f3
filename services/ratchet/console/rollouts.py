"""The history of rollouts as pages show it: past ones, the evidence of each decision, and the runs that went badly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import msgspec

from ratchet.bus.message import decode
from ratchet.core.contract import ModelRollout
from ratchet.core.contract.http.console import (
    DecisionPointOut,
    FailuresOut,
    PastRolloutOut,
    PastRolloutsOut,
    RolloutHistoryOut,
)
from ratchet.core.contract.http.rollouts import DifferenceOut
from ratchet.core.errors import NotFound
from ratchet.core.stores.history import OF_ROLE, latest_rewards
from ratchet.core.stores.trajectory_search import instant, millis

if TYPE_CHECKING:
    from ratchet.core.stores.trajectory_list import TrajectoryList
    from ratchet.core.stores.warehouse import Row, Warehouse

PAST, DECISIONS, FAILURES = 200, 2_000, 50
"""Shown of a role, of a rollout, and of an arm."""
LOOKED_AT = 20_000
"""Newest trajectories of an arm among which the worst are looked for."""
LATE = timedelta(hours=1)
"""So long after the last decision a run may end that began before it."""

_PAST = f"""
SELECT rollout_id, argMax(from_version, decision) AS before, argMax(to_version, decision) AS version,
    argMax(verdict, decision) AS last_verdict, argMax(reason, decision) AS why, argMax(actor, decision) AS who,
    count() AS decisions, min(at) AS began_at, max(at) AS ended_at
FROM rollouts FINAL WHERE {OF_ROLE} AND ({{rollout_id:String}} = '' OR rollout_id = {{rollout_id:String}})
GROUP BY rollout_id ORDER BY ended_at DESC, rollout_id LIMIT {{limit:UInt32}}
"""  # noqa: S608 - our own names
_DECISIONS = f"""
SELECT body FROM rollouts FINAL WHERE {OF_ROLE} AND rollout_id = {{rollout_id:String}}
ORDER BY decision LIMIT {{limit:UInt32}}
"""  # noqa: S608 - as above
_REWARDS = latest_rewards(
    "is_rewarded", "total", "confidence", where=f"{OF_ROLE} AND ingested_at >= {instant('since')}"
)
_WORST = f"""
SELECT t.trajectory_id AS trajectory_id
FROM (
    SELECT trajectory_id, ended_at, outcome FROM trajectories
    WHERE {OF_ROLE} AND ended_at >= {instant("began")} AND ended_at <= {instant("ended")} AND arm = {{arm:String}}
    ORDER BY ended_at DESC LIMIT {{most:UInt32}}
) AS t
LEFT JOIN {_REWARDS} AS r ON r.trajectory_id = t.trajectory_id
WHERE (r.is_rewarded AND r.confidence > 0) OR ifNull(t.outcome, '') = 'failure'
ORDER BY if(r.is_rewarded AND r.confidence > 0, r.total, 0), t.ended_at DESC
LIMIT 1 BY trajectory_id
LIMIT {{limit:UInt32}}
"""  # noqa: S608 - as above
"""A failure without a reward counts as one of 0."""


class Rollouts:
    """Reads the decisions that the deployer published, from ClickHouse."""

    def __init__(self, warehouse: Warehouse, listing: TrajectoryList) -> None:
        self._warehouse = warehouse
        self._listing = listing

    async def past(self, role: str) -> PastRolloutsOut:
        """A role's rollouts, newest first."""
        rows = await self._past(role, "", PAST)
        return PastRolloutsOut(
            rollouts=[
                PastRolloutOut(
                    rollout_id=row["rollout_id"],
                    role=role,
                    from_version=row["before"],
                    to_version=row["version"],
                    verdict=row["last_verdict"],
                    reason=row["why"],
                    actor=row["who"],
                    decisions=row["decisions"],
                    began_at=row["began_at"],
                    ended_at=row["ended_at"],
                )
                for row in rows
            ]
        )

    async def history(self, role: str, rollout_id: str | None) -> RolloutHistoryOut:
        """The decisions of a rollout, of the newest one by default. Raises `NotFound`."""
        rollout = await self._rollout(role, rollout_id)
        asked = {"role": role, "rollout_id": rollout["rollout_id"], "limit": DECISIONS}
        rows = await self._warehouse.rows(_DECISIONS, asked)
        decisions = await asyncio.to_thread(lambda: [decision_out(decode(row["body"], ModelRollout)) for row in rows])
        return RolloutHistoryOut(
            rollout_id=rollout["rollout_id"],
            role=role,
            from_version=rollout["before"],
            to_version=rollout["version"],
            decisions=decisions,
        )

    async def failures(self, role: str, rollout_id: str | None) -> FailuresOut:
        """The worst trajectories of both arms in a rollout's time. Raises `NotFound`."""
        rollout = await self._rollout(role, rollout_id)
        span = {
            "role": role,
            "began": millis(rollout["began_at"]),
            "ended": millis(rollout["ended_at"] + LATE),
            "since": millis(rollout["began_at"] - LATE),
            "most": LOOKED_AT,
            "limit": FAILURES,
        }
        arms = [
            [(role, row["trajectory_id"]) for row in await self._warehouse.rows(_WORST, {**span, "arm": arm})]
            for arm in ("stable", "canary")
        ]
        stable, canary = [await self._listing.named(keys) for keys in arms]
        return FailuresOut(stable=stable, canary=canary)

    async def _rollout(self, role: str, rollout_id: str | None) -> Row:
        rows = await self._past(role, rollout_id or "", 1)
        if not rows:
            named = f"no decision of a rollout {rollout_id}" if rollout_id else "no decision of a rollout"
            raise NotFound(f"{named} of {role} is stored")
        return rows[0]

    async def _past(self, role: str, rollout_id: str, limit: int) -> list[Row]:
        return await self._warehouse.rows(_PAST, {"role": role, "rollout_id": rollout_id, "limit": limit})


def decision_out(decision: ModelRollout) -> DecisionPointOut:
    """A decision as pages show it; of its evidence what has the form that is asked for."""
    evidence = decision.evidence or {}
    arms, differences = _object(evidence.get("arms")), _object(evidence.get("differences"))
    return DecisionPointOut(
        sequence=decision.sequence,
        at=decision.timestamp,
        verdict=decision.verdict,
        actor=decision.actor,
        reason=decision.reason,
        stage=decision.stage.index,
        weight=decision.stage.weight,
        e_values=decision.e_values or {},
        differences={
            metric: difference
            for metric, stated in differences.items()
            if (difference := _difference(stated)) is not None
        },
        counts={arm: _numbers(arms[arm]) for arm in ("stable", "canary") if arm in arms},
    )


def _difference(stated: object) -> DifferenceOut | None:
    try:
        return msgspec.convert(stated, DifferenceOut)
    except msgspec.ValidationError:
        return None


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _numbers(value: object) -> dict[str, float]:
    """The numbers of an object; a share of nothing is a text there."""
    return {
        name: float(number)
        for name, number in _object(value).items()
        if isinstance(number, int | float) and not isinstance(number, bool)
    }
