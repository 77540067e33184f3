"""The capture certificate: which calls and trajectories a learner may use, and why not the others.

A trajectory is what the gateway recorded under one id. Evaluation traffic (with a call to a pinned version) is left out
and counted apart; in a trajectory with a fallback every call counts as `mixed`, as for a training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from ratchet.core.rules.capture import Place, advice_of

if TYPE_CHECKING:
    from ratchet.core.stores.warehouse import Row, Warehouse


def _calls(where: str) -> str:
    """A subquery: each call once, with `bar`: why it teaches nothing, '' when it may."""
    return f"""(
    SELECT u.role AS role, u.trajectory_id AS trajectory_id, u.parent_turn_id AS parent, u.answered AS answered,
        u.api AS api, u.provider_model AS model, u.trajectory_by AS recognised,
        countIf(u.arm = 'pinned') OVER whole > 0 AS is_pinned,
        multiIf(
            countIf(u.arm = 'mixed') OVER whole > 0, 'mixed',
            u.trainable, '',
            coalesce(nullIf(toString(u.reason), ''), 'unknown')
        ) AS bar
    FROM turns AS u FINAL
    WHERE {where}
    WINDOW whole AS (PARTITION BY u.role, u.trajectory_id)
)"""  # noqa: S608 - our own names


_SINCE = (
    "({role:String} = '' OR u.role = {role:String}) AND u.at >= {since:DateTime64(3, 'UTC')}"
    " AND u.ingested_at >= {since:DateTime64(3, 'UTC')} - toIntervalHour(1)"
)
"""The condition on turns of a role (`''`: all) since an instant. A turn is stored after it was made, but for clocks
that differ: so the index by the time of storing leaves out what is older."""

_CELLS = f"""
SELECT role, is_pinned, bar, api, model, recognised, count() AS calls
FROM {_calls(_SINCE)} GROUP BY role, is_pinned, bar, api, model, recognised
"""  # noqa: S608 - our own names

_TRAJECTORIES = f"""
SELECT role, share, main, count() AS trajectories, sum(t.forks) AS forks, sum(t.unlinked) AS unlinked
FROM (
    SELECT role, trajectory_id,
        multiIf(countIf(bar = '') = count(), 'all', countIf(bar = '') > 0, 'some', 'none') AS share,
        sumMapIf(map(bar, toUInt64(1)), bar != '') AS bars,
        arraySort(name -> (-bars[name], name), mapKeys(bars))[1] AS main,
        countIf(parent IS NOT NULL) - uniqExactIf(parent, parent IS NOT NULL) AS forks,
        greatest(toInt64(countIf(parent IS NULL AND answered)) - 1, 0) AS unlinked
    FROM {_calls(_SINCE)} WHERE NOT is_pinned GROUP BY role, trajectory_id
) AS t
GROUP BY role, share, main
"""  # noqa: S608 - our own names

_OF_TRAJECTORY = f"""
SELECT bar, is_pinned, count() AS calls
FROM {_calls("u.role = {role:String} AND u.trajectory_id = {id:String}")} GROUP BY bar, is_pinned
"""  # noqa: S608 - our own names


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind, and how many of them a learner may use."""

    name: str
    calls: int
    learnable: int


class Barred(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that one reason bars, and what to change."""

    reason: str
    calls: int
    points: float
    """Percentage points that the share would gain at most: another reason may bar the same call."""
    place: Place
    meaning: str
    remedy: str


class TrajectoryShares(msgspec.Struct, frozen=True, kw_only=True):
    """Trajectories by whether a learner may use all, some or none of their calls."""

    all: int = 0
    some: int = 0
    none: int = 0
    reasons: dict[str, int] = {}
    """The trajectories that are not whole, by the reason that bars the most of their calls."""


class RoleCapture(msgspec.Struct, frozen=True, kw_only=True):
    """The certificate of a role."""

    role: str
    calls: int
    learnable: int
    pinned: int
    """Calls of evaluation traffic, which all other numbers leave out."""
    barred: list[Barred]
    """Most calls first."""
    trajectories: TrajectoryShares
    forks: int
    """Calls that are a further attempt at, or a branch from, a call that already had a successor."""
    unlinked: int
    """Answered calls without a parent, beyond the first of their trajectory: lost links, or several conversations."""
    apis: list[Share]
    models: list[Share]
    """As the engine named itself; empty where it did not."""
    recognised: list[Share]
    """By what the gateway recognised the trajectory."""


async def report(warehouse: Warehouse, role: str | None, since: datetime) -> list[RoleCapture]:
    """The certificates of one role or all since an instant, by role."""
    parameters = {"role": role or "", "since": since}
    cells = await warehouse.rows(_CELLS, parameters)
    trajectories = await warehouse.rows(_TRAJECTORIES, parameters)
    return [
        _of_role(own, [row for row in cells if row["role"] == own], [row for row in trajectories if row["role"] == own])
        for own in sorted({row["role"] for row in cells})
    ]


async def of_trajectory(warehouse: Warehouse, role: str, recorded_as: str) -> tuple[int, list[Barred]] | None:
    """Of the calls that were recorded under an id: how many there are, and those that are barred; None without any."""
    rows = await warehouse.rows(_OF_TRAJECTORY, {"role": role, "id": recorded_as})
    return (sum(row["calls"] for row in rows), barred_by(rows)) if rows else None


def barred_by(rows: Iterable[Row]) -> list[Barred]:
    """The reasons of calls, most calls first. `rows`: with `bar` (empty: not barred) and `calls`."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["bar"]] += row["calls"]
    whole = counts.total()
    barred: list[Barred] = []
    for reason, calls in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if reason:
            barred.append(Barred(reason=reason, calls=calls, points=100 * calls / whole, **asdict(advice_of(reason))))
    return barred


def _of_role(role: str, cells: Sequence[Row], trajectories: Sequence[Row]) -> RoleCapture:
    own = [row for row in cells if not row["is_pinned"]]
    shares: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for row in trajectories:
        shares[row["share"]] += row["trajectories"]
        if row["main"]:
            reasons[row["main"]] += row["trajectories"]
    return RoleCapture(
        role=role,
        calls=sum(row["calls"] for row in own),
        learnable=sum(row["calls"] for row in own if not row["bar"]),
        pinned=sum(row["calls"] for row in cells if row["is_pinned"]),
        barred=barred_by(own),
        trajectories=TrajectoryShares(**shares, reasons=dict(reasons.most_common())),
        forks=sum(row["forks"] for row in trajectories),
        unlinked=sum(row["unlinked"] for row in trajectories),
        apis=_shares(own, lambda row: row["api"]),
        models=_shares(own, lambda row: row["model"]),
        recognised=_shares(own, lambda row: row["recognised"]),
    )


def _shares(rows: Iterable[Row], name_of: Callable[[Row], str]) -> list[Share]:
    calls: Counter[str] = Counter()
    learnable: Counter[str] = Counter()
    for row in rows:
        calls[name_of(row)] += row["calls"]
        learnable[name_of(row)] += 0 if row["bar"] else row["calls"]
    ordered = sorted(calls, key=lambda name: (-calls[name], name))
    return [Share(name=name, calls=calls[name], learnable=learnable[name]) for name in ordered]
