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
from ratchet.datasets.domain.selection import LEFT_OUT_ARMS, Candidate, Learned, Rules, age_order, select
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.rules.training_options import Amounts


@dataclass(frozen=True, slots=True)
class Wanted:
    """The data that a job asks for."""

    role: str
    algorithm: str
    dataset: Dataset
    learned: Learned

    @property
    def filter(self) -> DatasetFilter:
        return self.dataset.filter or DatasetFilter()

    @property
    def format(self) -> str:
        return ALGORITHMS[self.algorithm].learns_from


@dataclass(frozen=True, slots=True)
class Draft:
    """What was chosen, and why the rest was left out."""

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


class Drafts:
    """Chooses from the warehouse."""

    def __init__(
        self, trajectories: Trajectories, preferences: Preferences, amounts: Amounts, pairs_per_group: int
    ) -> None:
        """`amounts`: how few rows a job is run on. `pairs_per_group`: most pairs of one task."""
        self._trajectories = trajectories
        self._preferences = preferences
        self._amounts = amounts
        self._pairs_per_group = pairs_per_group

    async def draft(self, wanted: Wanted) -> Draft:
        """The draft of the format that the job's algorithm learns from."""
        by_format = {TRAJECTORIES: self._draft_trajectories, PAIRS: self._draft_pairs, LABELS: self._draft_labels}
        return await by_format[wanted.format](wanted)

    async def _draft_trajectories(self, wanted: Wanted) -> Draft:
        recipe = recipe_of(wanted)
        catalogue = await self._trajectories.catalogue(wanted.role)
        consumed = wanted.learned.trajectories if recipe.needs_calls else frozenset[str]()
        rules = Rules(filter=wanted.filter, needs_calls=recipe.needs_calls, consumed=consumed)
        selection = select(catalogue.candidates, rules, wanted.dataset.sample_size)
        scores = _scores(catalogue.candidates, recipe.transform)

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._trajectories.trajectories(wanted.role, ids)
            turns = await self._trajectories.turns(wanted.role, ids)
            return await asyncio.to_thread(
                lambda: [row_of(found[key], turns[key], scores[key], recipe) for key in ids if key in found]
            )

        return Draft(
            ids=[candidate.trajectory_id for candidate in selection.chosen],
            left_out=selection.left_out,
            nouns=("trajectory with a reward", "rewarded trajectories"),
            rows=rows,
            watermarks=catalogue.watermarks,
            reward_function=catalogue.reward_function,
            minimum=self._amounts.least(wanted.algorithm),
            waiting=catalogue.waiting,
        )

    async def _draft_pairs(self, wanted: Wanted) -> Draft:
        watermark = await self._preferences.watermark(wanted.role, "preferences")
        opinions = await self._preferences.opinions(wanted.role)
        rules = PairRules(wanted.filter, wanted.learned.preferences, self._pairs_per_group)
        selection = select_pairs(opinions, rules, wanted.dataset.sample_size)

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._preferences.preferences(wanted.role, ids)
            votes = selection.votes
            return await asyncio.to_thread(lambda: [pair_row(found[key], votes[key]) for key in ids if key in found])

        return Draft(
            ids=[opinion.preference_id for opinion in selection.chosen],
            left_out=selection.left_out,
            nouns=("preference", "preferences"),
            rows=rows,
            watermarks={"RL_FEEDBACK": watermark},
            minimum=self._amounts.least(wanted.algorithm),
        )

    async def _draft_labels(self, wanted: Wanted) -> Draft:
        watermark = await self._preferences.watermark(wanted.role, "feedback")
        said = labels(await self._preferences.thumbs(wanted.role))
        catalogue = await self._trajectories.catalogue(wanted.role)
        judged = [one for one in catalogue.candidates if said.get(one.trajectory_id) is not None]
        rules = Rules(filter=wanted.filter, needs_calls=False, consumed=wanted.learned.labelled)
        selection = select(judged, rules, wanted.dataset.sample_size)
        chosen = {one.trajectory_id: bool(said[one.trajectory_id]) for one in selection.chosen}

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            found = await self._trajectories.trajectories(wanted.role, ids)
            turns = await self._trajectories.turns(wanted.role, ids)
            return await asyncio.to_thread(
                lambda: [label_row(found[key], turns[key], chosen[key]) for key in ids if key in found]
            )

        lost = left_out_before(said, {one.trajectory_id for one in catalogue.candidates})
        ups = sum(chosen.values())
        return Draft(
            ids=list(chosen),
            left_out=+Counter({**selection.left_out, **lost}),
            nouns=("trajectory with a reward and thumbs", "trajectories with thumbs"),
            rows=rows,
            watermarks={**catalogue.watermarks, "RL_FEEDBACK": watermark},
            reward_function=catalogue.reward_function,
            minimum=self._amounts.least(wanted.algorithm),
            waiting=catalogue.waiting,
            problem=_one_sided(ups, len(chosen)),
        )


def recipe_of(wanted: Wanted) -> Recipe:
    """How rows of trajectories are made for the job."""
    transform = wanted.dataset.reward_transform or "identity"
    return Recipe(transform=transform, needs_calls=ALGORITHMS[wanted.algorithm].needs_token_ids)


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
