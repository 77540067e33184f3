"""What a rollout did to the trajectories that a pattern is about: the difference between its arms.

Arms are drawn at random for each start, and what is known before no arm has touched. So among starts that match such
triggers the arms differ by the change alone, where a difference between before and after would be there without any:
a pattern was picked because it was bad.

What matches is known of trajectories that ended. Where the arms end, reach the triggers or get values unequally often,
those that can be compared are unlike, and no effect is stated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from ratchet.analyst.clickhouse_episodes import StoredEpisodes, add_all
from ratchet.analyst.domain.plan import HIGHER_IS_BETTER, LOWER_IS_BETTER
from ratchet.analyst.mining.base import Episodes, Floats, Mask
from ratchet.analyst.mining.features import EpisodeBuilder
from ratchet.core.contract.learning import AdaptationPlan, ArmEffect, Trigger
from ratchet.core.rules.arms import CANARY, STABLE
from ratchet.core.rules.confidence import ALPHA, Limits, ShareArms, ShareCosts, limits_of, mean_limits_of
from ratchet.core.stores.warehouse import Warehouse

LEAST = 30
"""Trajectories of each arm that match: the limits hold about, where there are few."""
ENTRY = frozenset({"language", "length", "term", "offered", "hour", "agent", "task_type"})
"""Attributes that are known before the arm is drawn. The arm decides on model and version, and a policy's questions on
the documents that are retrieved; the domain of a task comes when it ends."""
REPORTED = frozenset({"task_type"})
"""Those of them that agents name when a task ends, as its type. What names failures otherwise in one arm moves them to
other types, and changes nothing in the whole: so the effect on such a type is one of the whole rollout, too."""
UNEQUAL_KNOWN = 2.0
"""Standard errors by which shares of ended trajectories, or of known values, may differ between the arms."""
UNEQUAL_ARMS = 3.3
"""Standard errors by which the canary's share of what matches may differ from its share of the draws: p = .001."""
BROAD = 10_000.0
"""The variance near which limits of values without a bound are tightest, in units of the effect that was promised:
that of some 300 trajectories of each arm whose values scatter by three such effects."""
STARTS = """
    SELECT w.trajectory_id AS trajectory_id, any(w.arm) AS drawn, any(w.weight) AS share FROM starts AS w
    WHERE w.role = {role:String} AND w.rollout_id = {rollout_id:String} AND w.arm IN ('stable', 'canary')
        AND w.ingested_at <= {until:DateTime64(3, 'UTC')}
    GROUP BY w.trajectory_id ORDER BY w.trajectory_id
"""
"""One row for each start, by when it was stored: `at` is of the gateway's clock, which may go wrong. Its trajectory has
the same id; further conversations of one run have ids of their own."""
Drawn = Mapping[str, tuple[str, float]]
"""Arm, and canary's share of the traffic at the draw, by start."""


class EpisodesOf(Protocol):
    """Those of a role that ended in a time, of `ids` where they are given; values of the triggers are kept, however
    rare. Raises `Unavailable`."""

    async def __call__(
        self,
        role: str,
        since: datetime,
        until: datetime,
        keep: Sequence[Trigger],
        ids: Sequence[str] | None = None,
    ) -> Episodes: ...


def stored_episodes(stored: StoredEpisodes) -> EpisodesOf:
    """Episodes of what the warehouse has."""

    async def read(
        role: str, since: datetime, until: datetime, keep: Sequence[Trigger], ids: Sequence[str] | None = None
    ) -> Episodes:
        builder = EpisodeBuilder(keep)
        pages = stored.window(role, since, until) if ids is None else stored.chosen(role, ids, since, until)
        async for page in pages:
            await asyncio.to_thread(add_all, builder, page)
        return await asyncio.to_thread(builder.build)

    return read


@dataclass(frozen=True)
class Effects:
    """Raises `Unavailable` while the warehouse is away."""

    warehouse: Warehouse
    episodes: EpisodesOf

    async def measure(
        self, plan: AdaptationPlan, rollout_id: str, since: datetime, now: datetime, settling: timedelta
    ) -> ArmEffect | str:
        """The effect of a plan's rollout on what started so long ago that its outcome is due (`settling`); else why
        there is none to tell, in words."""
        unable = why_unmeasurable(plan)
        if unable is not None:
            return unable
        asked = {"role": plan.role, "rollout_id": rollout_id, "until": now - settling}
        rows = await self.warehouse.rows(STARTS, asked)
        drawn = {row["trajectory_id"]: (row["drawn"], float(row["share"])) for row in rows}
        episodes = await self.episodes(plan.role, since, now, plan.triggers, [*drawn])
        return arm_effect(plan, episodes, drawn, now)


def why_unmeasurable(plan: AdaptationPlan) -> str | None:
    """Why no arms can show a plan's effect; None where they can."""
    if plan.expected.measure not in LOWER_IS_BETTER | HIGHER_IS_BETTER:
        return f"{plan.expected.measure} is nothing that arms of a canary differ in"
    late = [trigger.attribute for trigger in plan.triggers if trigger.attribute not in ENTRY]
    return f"{late[0]} is known only after the arm was drawn, and the change may have touched it" if late else None


def entry_of(triggers: Sequence[Trigger]) -> tuple[Trigger, ...]:
    """Those that are known before the arm is drawn; all of them where none is."""
    return tuple(trigger for trigger in triggers if trigger.attribute in ENTRY) or tuple(triggers)


def arm_effect(plan: AdaptationPlan, episodes: Episodes, drawn: Drawn, now: datetime) -> ArmEffect | str:
    """The difference between the arms, or why it is not known. Of `failure` no end and no outcome count as one. Where
    triggers are reported, each limit is at least as far as that of the whole rollout (95 % at each side), as if the
    others had not changed."""
    effect = _effect(plan, episodes, drawn, now)
    if isinstance(effect, str) or not any(trigger.attribute in REPORTED for trigger in plan.triggers):
        return effect
    whole = _effect(replace(plan, triggers=()), episodes, drawn, now, 2 * ALPHA)
    if isinstance(whole, str):
        return whole
    times = (whole.stable + whole.canary) / (effect.stable + effect.canary)
    low, high = min(effect.low, times * whole.low), max(effect.high, times * whole.high)
    if plan.expected.measure == "failure":
        low, high = max(-1.0, low), min(1.0, high)
    return replace(effect, low=low, high=high)


def _effect(
    plan: AdaptationPlan, episodes: Episodes, drawn: Drawn, now: datetime, alpha: float = ALPHA
) -> ArmEffect | str:
    measure = plan.expected.measure
    arms, weights, values, ended = _matching(plan, episodes, drawn)
    counts = {STABLE: int((~arms).sum()), CANARY: int(arms.sum())}
    if min(counts.values()) < LEAST:
        shown = " and ".join(f"{count} {arm}" for arm, count in counts.items())
        return f"{shown} trajectories match the triggers, and each arm needs {LEAST}"
    known = ~np.isnan(values)
    if measure == "failure":  # as in the canary's tests
        values, known = np.where(known, values, 1.0), np.ones_like(known)
    unlike = ended or _unlike(arms, weights, known, measure)
    if unlike is not None:
        return unlike
    shares = _by_weight(values[known], arms[known], weights[known])
    if not shares:
        return "no share of traffic had trajectories of both arms that match the triggers"
    difference, limits = _difference(measure, shares, abs(plan.expected.value), alpha)
    taken = [int(sum(share.count[arm] for share in shares)) for arm in (0, 1)]
    return ArmEffect(difference=difference, low=limits.low, high=limits.high, stable=taken[0], canary=taken[1], at=now)


def _matching(plan: AdaptationPlan, episodes: Episodes, drawn: Drawn) -> tuple[Mask, Floats, Floats, str | None]:
    """Of the starts that match: whether the canary was drawn, its share of the draws, and the measure, NaN where it is
    not known, (n,) each; last whether the arms ended unequally often, in words: what never ended matches where a plan
    has no triggers, and elsewhere it is not known whether it does."""
    place = {trajectory_id: n for n, trajectory_id in enumerate(episodes.ids)}
    starts = [*drawn] if not plan.triggers else [each for each in drawn if each in place]
    matches = episodes.matching(plan.triggers)
    starts = [each for each in starts if each not in place or matches[place[each]]]
    known = episodes.measures[plan.expected.measure]
    values = np.array([known[place[each]] if each in place else np.nan for each in starts], dtype=np.float64)
    unlike = None
    if plan.triggers:
        arms = np.array([arm == CANARY for arm, _ in drawn.values()], dtype=bool)
        ended = np.array([each in place for each in drawn], dtype=bool)
        gap = _unequal(arms, ended)
        unlike = f"canary and stable end unequally often: the shares differ by {gap:.1%}" if gap else None
    is_canary = np.array([drawn[each][0] == CANARY for each in starts], dtype=bool)
    return is_canary, np.array([drawn[each][1] for each in starts], dtype=np.float64), values, unlike


def _unlike(arms: Mask, weights: Floats, known: Mask, measure: str) -> str | None:
    """Why those that can be compared are unlike, in words."""
    gap = _unequal(arms, known)
    if gap:
        return f"the {measure} of canary and stable is known unequally often: the shares differ by {gap:.1%}"
    off = abs(float((arms - weights).sum())) / max(float((weights * (1 - weights)).sum()), 1e-9) ** 0.5
    if off > UNEQUAL_ARMS:
        return f"the arms reach the triggers unequally: canary {arms.mean():.1%}, of {weights.mean():.1%} of the draws"
    return None


def _unequal(arms: Mask, has: Mask) -> float:
    """Difference of the shares of both arms that have something; 0 where it may be chance."""
    counts = [int(side.sum()) for side in (~arms, arms)]
    if min(counts) == 0:
        return 0.0
    gap, share = abs(float(has[arms].mean() - has[~arms].mean())), float(has.mean())
    error = (share * (1 - share) * sum(1 / count for count in counts)) ** 0.5
    return gap if gap > UNEQUAL_KNOWN * error else 0.0


def _by_weight(values: Floats, is_canary: Mask, weights: Floats) -> list[ShareCosts]:
    """Count, sum and sum of squares of both arms under each share of traffic that has both."""
    shares: list[ShareCosts] = []
    for weight in np.unique(weights):
        arms = [values[(weights == weight) & arm] for arm in (~is_canary, is_canary)]
        if all(map(len, arms)):
            sums = [tuple(float((arm**power).sum()) for arm in arms) for power in range(3)]
            shares.append(ShareCosts(float(weight), sums[0], sums[1], sums[2]))
    return shares


def _difference(measure: str, shares: Sequence[ShareCosts], promised: float, alpha: float) -> tuple[float, Limits]:
    if measure != "failure":
        return mean_limits_of(shares, BROAD * max(promised, 1e-9) ** 2, alpha)
    arms = [ShareArms(share.weight, share.count, share.spent) for share in shares]
    size = sum(share.size for share in arms)
    return sum(share.size * share.difference for share in arms) / size, limits_of(arms, alpha)
