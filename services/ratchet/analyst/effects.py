"""What a rollout did to the trajectories that a pattern is about: the difference between its arms.

Arms are drawn at random, and what is known before the outcome no arm has touched. So among trajectories that match such
triggers the arms differ by the change alone, where a difference between before and after would be there without any:
a pattern was picked because it was bad.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from ratchet.analyst.clickhouse_episodes import Rated, StoredEpisodes
from ratchet.analyst.domain.plan import HIGHER_IS_BETTER, LOWER_IS_BETTER
from ratchet.analyst.mining.base import KNOWN_BEFORE, Episodes, Floats, Mask
from ratchet.analyst.mining.features import EpisodeBuilder
from ratchet.core.contract.learning import AdaptationPlan, ArmEffect, Trigger
from ratchet.core.rules.arms import CANARY, STABLE
from ratchet.core.rules.confidence import Limits, ShareArms, ShareCosts, limits_of, mean_limits_of
from ratchet.core.stores.warehouse import Warehouse

LEAST = 30
"""Trajectories of each arm that match: the limits hold about, where there are few."""
ENTRY = KNOWN_BEFORE - {"model", "version", "document"}
"""Attributes that are known before the arm is drawn: the arm decides on model and version, and a policy's questions on
the documents that are retrieved."""
UNEQUAL = 0.1
"""Difference of the shares of known values from which those that are known compare unlike trajectories."""
BROAD = 10_000.0
"""The variance near which limits of values without a bound are tightest, in units of the effect that was promised:
that of some 300 trajectories of each arm whose values scatter by three such effects."""
EpisodesOf = Callable[[str, datetime, datetime, Sequence[Trigger]], Awaitable[Episodes]]
"""Those of a role that ended in a time; values of the triggers are kept, however rare. Raises `Unavailable`."""
STARTS = """
    SELECT t.trajectory_id AS trajectory_id, s.drawn AS arm, s.share AS weight
    FROM (
        SELECT w.trajectory_id AS trajectory_id, any(w.arm) AS drawn, any(w.weight) AS share FROM starts AS w
        WHERE w.role = {role:String} AND w.rollout_id = {rollout_id:String} AND w.arm IN ('stable', 'canary')
        GROUP BY w.trajectory_id
    ) AS s
    INNER JOIN (SELECT DISTINCT trajectory_id, recorded_as FROM trajectories WHERE role = {role:String}) AS t
    ON t.recorded_as = s.trajectory_id
"""


def stored_episodes(stored: StoredEpisodes) -> EpisodesOf:
    """Episodes of what the warehouse has."""

    async def read(role: str, since: datetime, until: datetime, keep: Sequence[Trigger]) -> Episodes:
        builder = EpisodeBuilder(keep)
        async for page in stored.window(role, since, until):
            await asyncio.to_thread(_add, builder, page)
        return await asyncio.to_thread(builder.build)

    return read


def _add(builder: EpisodeBuilder, page: Sequence[Rated]) -> None:
    for rated in page:
        builder.add(
            rated.trajectory,
            reward=rated.reward,
            components=rated.components,
            feedback=rated.has_feedback,
            documents=rated.documents,
        )


@dataclass(frozen=True)
class Effects:
    """Raises `Unavailable` while the warehouse is away."""

    warehouse: Warehouse
    episodes: EpisodesOf

    async def measure(self, plan: AdaptationPlan, rollout_id: str, since: datetime, now: datetime) -> ArmEffect | str:
        """The effect of a plan's rollout, of all that has ended so far; else why there is none to tell, in words."""
        unable = why_unmeasurable(plan)
        if unable is not None:
            return unable
        rows = await self.warehouse.rows(STARTS, {"role": plan.role, "rollout_id": rollout_id})
        episodes = await self.episodes(plan.role, since, now, plan.triggers)
        drawn = {row["trajectory_id"]: (row["arm"], float(row["weight"])) for row in rows}
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


def arm_effect(
    plan: AdaptationPlan, episodes: Episodes, drawn: dict[str, tuple[str, float]], now: datetime
) -> ArmEffect | str:
    """The difference between the arms, or why it is not known; `drawn`: arm and canary's share of the traffic at the
    draw, by trajectory."""
    measure = plan.expected.measure
    in_rollout = np.array([trajectory_id in drawn for trajectory_id in episodes.ids], dtype=bool)
    matching = np.flatnonzero(in_rollout & episodes.matching(plan.triggers))
    arms = np.array([drawn[episodes.ids[n]][0] == CANARY for n in matching], dtype=bool)
    weights = np.array([drawn[episodes.ids[n]][1] for n in matching], dtype=np.float64)
    values = episodes.measures[measure][matching]
    counts = {STABLE: int((~arms).sum()), CANARY: int(arms.sum())}
    if min(counts.values()) < LEAST:
        shown = " and ".join(f"{count} {arm}" for arm, count in counts.items())
        return f"{shown} trajectories match the triggers, and each arm needs {LEAST}"
    known = ~np.isnan(values)
    if measure == "failure":  # an outcome that never came counts as one, as in the canary's tests
        values, known = np.where(known, values, 1.0), np.ones_like(known)
    gap = abs(float(known[arms].mean() - known[~arms].mean()))
    if gap > UNEQUAL:
        return f"the {measure} of canary and stable is known unequally often: the shares differ by {gap:.0%}"
    shares = _by_weight(values[known], arms[known], weights[known])
    if not shares:
        return "no share of traffic had trajectories of both arms that match the triggers"
    difference, limits = _difference(measure, shares, abs(plan.expected.value))
    taken = [int(sum(share.count[arm] for share in shares)) for arm in (0, 1)]
    return ArmEffect(difference=difference, low=limits.low, high=limits.high, stable=taken[0], canary=taken[1], at=now)


def _by_weight(values: Floats, is_canary: Mask, weights: Floats) -> list[ShareCosts]:
    """Count, sum and sum of squares of both arms under each share of traffic that has both."""
    shares: list[ShareCosts] = []
    for weight in np.unique(weights):
        arms = [values[(weights == weight) & arm] for arm in (~is_canary, is_canary)]
        if all(map(len, arms)):
            sums = [tuple(float((arm**power).sum()) for arm in arms) for power in range(3)]
            shares.append(ShareCosts(float(weight), sums[0], sums[1], sums[2]))
    return shares


def _difference(measure: str, shares: Sequence[ShareCosts], promised: float) -> tuple[float, Limits]:
    if measure != "failure":
        return mean_limits_of(shares, BROAD * max(promised, 1e-9) ** 2)
    arms = [ShareArms(share.weight, share.count, share.spent) for share in shares]
    size = sum(share.size for share in arms)
    return sum(share.size * share.difference for share in arms) / size, limits_of(arms)
