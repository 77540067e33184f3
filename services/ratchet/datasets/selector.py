"""What a snapshot of each format would hold: chosen ids and reasons first, rows only when they are asked for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ratchet.contract.snapshot import LABELS, PAIRS, TRAJECTORIES
from ratchet.contract.training import Dataset, DatasetFilter
from ratchet.datasets.clickhouse_preferences import Preferences
from ratchet.datasets.clickhouse_trajectories import Trajectories
from ratchet.datasets.domain.baselines import baselines
from ratchet.datasets.domain.labels import label_row, labels, left_out_before
from ratchet.datasets.domain.pairs import PairRules, pair_row, select_pairs
from ratchet.datasets.domain.rows import TRANSFORMS, Recipe, Scored, SnapshotRow, row_of
from ratchet.datasets.domain.selection import LEFT_OUT_ARMS, Candidate, Consumed, Rules, age_order, select
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.rules.training_options import Amounts


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """The data that a job asks for."""

    role: str
    algorithm: str
    dataset: Dataset
    consumed: Consumed

    @property
    def filter(self) -> DatasetFilter:
        return self.dataset.filter or DatasetFilter()

    @property
    def format(self) -> str:
        return ALGORITHMS[self.algorithm].learns_from


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a snapshot will hold, and why the rest was left out."""

    ids: Sequence[str]
    left_out: Mapping[str, int]
    nouns: tuple[str, str]
    """What is chosen from, one and many, for people."""
    rows: Callable[[Sequence[str]], Awaitable[Sequence[SnapshotRow | str]]]
    """The rows of some of the ids; a reason (a token) where there can be none."""
    watermarks: Mapping[str, int]
    reward_function: str = ""
    minimum: int = 1
    """Less is refused."""
    waiting: int = 0
    """Stored trajectories that have no reward yet, and cannot be chosen before."""
    problem: str | None = None
    """Why these cannot be learned from, however many there are."""


class SnapshotSelector:
    """Chooses from the warehouse what a snapshot will hold."""

    def __init__(
        self, trajectories: Trajectories, preferences: Preferences, amounts: Amounts, pairs_per_group: int
    ) -> None:
        """`amounts`: how few rows a job is run on. `pairs_per_group`: most pairs of one task."""
        self._trajectories = trajectories
        self._preferences = preferences
        self._amounts = amounts
        self._pairs_per_group = pairs_per_group

    async def select(self, query: SnapshotQuery) -> SnapshotPlan:
        """The plan of a snapshot in the format that the job's algorithm learns from."""
        by_format = {TRAJECTORIES: self._plan_trajectories, PAIRS: self._plan_pairs, LABELS: self._plan_labels}
        return await by_format[query.format](query)

    async def _plan_trajectories(self, query: SnapshotQuery) -> SnapshotPlan:
        recipe = recipe_of(query)
        catalogue = await self._trajectories.catalogue(query.role)
        consumed = query.consumed.trajectories if recipe.needs_calls else frozenset[str]()
        rules = Rules(filter=query.filter, needs_calls=recipe.needs_calls, consumed=consumed)
        selection = select(catalogue.candidates, rules, query.dataset.sample_size)
        scores = _scores(catalogue.candidates, recipe.transform)

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._trajectories.trajectories(query.role, ids)
            turns = await self._trajectories.turns(query.role, ids)
            return await asyncio.to_thread(
                lambda: [row_of(found[key], turns[key], scores[key], recipe) for key in ids if key in found]
            )

        return SnapshotPlan(
            ids=[candidate.trajectory_id for candidate in selection.chosen],
            left_out=selection.left_out,
            nouns=("trajectory with a reward", "rewarded trajectories"),
            rows=rows,
            watermarks=catalogue.watermarks,
            reward_function=catalogue.reward_function,
            minimum=self._amounts.least(query.algorithm),
            waiting=catalogue.waiting,
        )

    async def _plan_pairs(self, query: SnapshotQuery) -> SnapshotPlan:
        watermark = await self._preferences.watermark(query.role, "preferences")
        opinions = await self._preferences.opinions(query.role)
        rules = PairRules(query.filter, query.consumed.preferences, self._pairs_per_group)
        selection = select_pairs(opinions, rules, query.dataset.sample_size)

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._preferences.preferences(query.role, ids)
            votes = selection.votes
            return await asyncio.to_thread(lambda: [pair_row(found[key], votes[key]) for key in ids if key in found])

        return SnapshotPlan(
            ids=[opinion.preference_id for opinion in selection.chosen],
            left_out=selection.left_out,
            nouns=("preference", "preferences"),
            rows=rows,
            watermarks={"RL_FEEDBACK": watermark},
            minimum=self._amounts.least(query.algorithm),
        )

    async def _plan_labels(self, query: SnapshotQuery) -> SnapshotPlan:
        watermark = await self._preferences.watermark(query.role, "feedback")
        said = labels(await self._preferences.thumbs(query.role))
        catalogue = await self._trajectories.catalogue(query.role)
        judged = [one for one in catalogue.candidates if said.get(one.trajectory_id) is not None]
        rules = Rules(filter=query.filter, needs_calls=False, consumed=query.consumed.labelled)
        selection = select(judged, rules, query.dataset.sample_size)
        chosen = {one.trajectory_id: bool(said[one.trajectory_id]) for one in selection.chosen}

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._trajectories.trajectories(query.role, ids)
            turns = await self._trajectories.turns(query.role, ids)
            return await asyncio.to_thread(
                lambda: [label_row(found[key], turns[key], chosen[key]) for key in ids if key in found]
            )

        lost = left_out_before(said, {one.trajectory_id for one in catalogue.candidates})
        ups = sum(chosen.values())
        return SnapshotPlan(
            ids=list(chosen),
            left_out=+Counter({**selection.left_out, **lost}),
            nouns=("trajectory with a reward and thumbs", "trajectories with thumbs"),
            rows=rows,
            watermarks={**catalogue.watermarks, "RL_FEEDBACK": watermark},
            reward_function=catalogue.reward_function,
            minimum=self._amounts.least(query.algorithm),
            waiting=catalogue.waiting,
            problem=_one_sided(ups, len(chosen)),
        )


def recipe_of(query: SnapshotQuery) -> Recipe:
    """How rows of trajectories are made for the job."""
    transform = query.dataset.reward_transform or "identity"
    return Recipe(transform=transform, needs_calls=ALGORITHMS[query.algorithm].needs_token_ids)


def _scores(candidates: Sequence[Candidate], transform: str) -> Mapping[str, Scored]:
    """Reward and baseline of every candidate. Baselines are folded over all of the role's own traffic, oldest first."""
    transformed = TRANSFORMS[transform]
    counted = [candidate for candidate in candidates if not candidate.arms & LEFT_OUT_ARMS]
    history = [(c.trajectory_id, c.task_key, transformed(c.reward)) for c in sorted(counted, key=age_order)]
    known = baselines(history)
    return {c.trajectory_id: Scored(c.task_key, c.reward, known.get(c.trajectory_id)) for c in candidates}


def _one_sided(ups: int, number: int) -> str | None:
    if number and ups in (0, number):
        return f"all {number} thumbs are {'up' if ups else 'down'}: there is nothing to tell apart"
    return None
