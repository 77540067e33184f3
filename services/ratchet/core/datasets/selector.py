"""Selects what a snapshot of each format would hold: ids and reasons at once, rows only when the caller asks."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ratchet.bus.connection import Extent
from ratchet.core.contract.snapshot import EXECUTIONS, LABELS, PAIRS, TRAJECTORIES
from ratchet.core.contract.training import Dataset, DatasetFilter
from ratchet.core.datasets.clickhouse_executions import Executions
from ratchet.core.datasets.clickhouse_preferences import Preferences
from ratchet.core.datasets.clickhouse_trajectories import Trajectories
from ratchet.core.datasets.domain.executions import WORKFLOWS, execution_row
from ratchet.core.datasets.domain.labels import label_row, select_labels
from ratchet.core.datasets.domain.pairs import (
    BEYOND_HUMAN_SHARE,
    Opinion,
    PairRules,
    PairSelection,
    pair_row,
    select_pairs,
)
from ratchet.core.datasets.domain.reward_groups import baselines
from ratchet.core.datasets.domain.rows import TRANSFORMS, RowOrigin, Scored, SnapshotRow, row_of, with_words
from ratchet.core.datasets.domain.selection import (
    LEFT_OUT_ARMS,
    Candidate,
    Consumed,
    TrajectoryRules,
    age_order,
    select,
)
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import Amounts

TURNS_AT_A_TIME = 1500
"""A turn of 1,000 new tokens takes some 100 KB while its row is made."""


RatersLeftOut = Callable[[str, Sequence[Opinion]], Awaitable[Sequence[str]]]
"""The raters of a role whose opinions no training learns from."""


async def no_rater(_role: str, _opinions: Sequence[Opinion]) -> Sequence[str]:
    """Every rater counts."""
    return ()


def without_raters(chosen: DatasetFilter, raters: Sequence[str]) -> DatasetFilter:
    """The filter, which leaves these raters out too."""
    every = [*dict.fromkeys((*(chosen.excluded_raters or ()), *raters))]
    return msgspec.structs.replace(chosen, excluded_raters=every) if raters else chosen


def with_human_share(chosen: DatasetFilter, amounts: Amounts) -> DatasetFilter:
    """The filter of pairs, with the least share of people's where it names none."""
    if chosen.min_human_share is not None or not amounts.human_share:
        return chosen
    return msgspec.structs.replace(chosen, min_human_share=amounts.human_share)


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """The data that a job asks for."""

    role: str
    algorithm: str
    dataset: Dataset
    consumed: Consumed
    generations: Mapping[int, int] = field(default_factory=dict[int, int])
    """See `TrajectoryRules`."""
    held: Extent | None = None
    """What the stream of trajectories holds, where the data shall be in it; None: all that is stored."""
    holdout: float = 0.0
    """Share of it that the job holds out."""

    @property
    def filter(self) -> DatasetFilter:
        return self.dataset.filter or DatasetFilter()

    def with_filter(self, chosen: DatasetFilter) -> SnapshotQuery:
        """The query with another filter."""
        return dataclasses.replace(self, dataset=msgspec.structs.replace(self.dataset, filter=chosen))

    @property
    def format(self) -> str:
        return ALGORITHMS[self.algorithm].learns_from

    @property
    def reward_transform(self) -> str:
        return self.dataset.reward_transform or "identity"

    @property
    def needs_calls(self) -> bool:
        return ALGORITHMS[self.algorithm].needs_token_ids


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a snapshot will hold, and how many others were left out for which reason."""

    ids: Sequence[str]
    turns: Sequence[int]
    """Of each id: how large its row may become."""
    left_out: Mapping[str, int]
    nouns: tuple[str, str]
    """What the ids were chosen from, in words: one, and many."""
    rows: Callable[[Sequence[str]], Awaitable[Sequence[SnapshotRow | str]]]
    """Makes the rows of some of the ids; a reason (a token) where a row cannot be made."""
    watermarks: Mapping[str, int]
    minimum: int
    """A job refuses fewer rows."""
    floor: int = sys.maxsize
    """The same for a request that asks for as few as it may."""
    reward_function: str = ""
    waiting: int = 0
    """Stored trajectories that have no reward yet and therefore could not be chosen."""
    problem: str | None = None
    """Why a policy cannot learn from these, however many there are."""
    tasks: Sequence[str] = ()
    """Of each id: what a hold-out never separates, as far as it is known without the rows; empty where nothing is held
    out."""
    rewards: Sequence[float] | None = None
    """Of each id, where tries are compared: those of a task that are all rewarded alike teach nothing."""
    filter: DatasetFilter | None = None
    """Where it is more than the query's: with the raters who are left out."""

    def chunks(self, most: int) -> Iterator[list[str]]:
        """The ids in parts of at most `most` whose rows fit into memory together."""
        part, turns = list[str](), 0
        for key, count in zip(self.ids, self.turns, strict=True):
            if part and (len(part) == most or turns + count > TURNS_AT_A_TIME):
                yield part
                part, turns = [], 0
            part.append(key)
            turns += count
        if part:
            yield part


@dataclass(frozen=True, slots=True)
class SnapshotSelector:
    """Chooses from the warehouse what a snapshot will hold.

    Choosing from a long history takes seconds: threads do it, while the event loop hears workers and answers calls.
    """

    trajectories: Trajectories
    preferences: Preferences
    executions: Executions
    amounts: Amounts
    """The fewest rows of a job."""
    pairs_per_group: int
    """The most pairs of one task."""
    raters_left_out: RatersLeftOut = no_rater

    async def select(self, query: SnapshotQuery) -> SnapshotPlan:
        """The plan of a snapshot in the format that the job's algorithm learns from."""
        by_format = {
            TRAJECTORIES: self._plan_trajectories,
            PAIRS: self._plan_pairs,
            LABELS: self._plan_labels,
            EXECUTIONS: self._plan_executions,
        }
        return await by_format[query.format](query)

    async def _plan_trajectories(self, query: SnapshotQuery) -> SnapshotPlan:
        catalogue = await self.trajectories.catalogue(query.role, query.held)
        consumed = query.consumed.trajectories if query.needs_calls else frozenset[str]()
        rules = TrajectoryRules(query.filter, query.needs_calls, consumed, query.generations)
        candidates, most = catalogue.candidates, query.dataset.sample_size
        selection = await asyncio.to_thread(select, candidates, rules, most, catalogue.unlisted)
        scores = await asyncio.to_thread(scored, candidates, query.reward_transform)

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            stored = await self.trajectories.trajectories(query.role, ids)
            turns = await self.trajectories.turns_of(query.role, stored.values())
            made = await asyncio.to_thread(
                lambda: [
                    row_of(stored[key], turns[key], scores[key], query.needs_calls) for key in ids if key in stored
                ]
            )
            if not ALGORITHMS[query.algorithm].writes_bundle:
                return made
            words = await self.trajectories.words(query.role, ids)
            return [with_words(row, words) for row in made]

        return SnapshotPlan(
            ids=[candidate.trajectory_id for candidate in selection.chosen],
            turns=[candidate.turns for candidate in selection.chosen],
            left_out=selection.left_out,
            nouns=(f"trajectory with a reward {self.trajectories.reach}", "rewarded trajectories"),
            rows=rows,
            watermarks=catalogue.watermarks,
            minimum=self._least(query),
            reward_function=catalogue.reward_function,
            waiting=catalogue.waiting,
            tasks=[candidate.task_key for candidate in selection.chosen],
            rewards=[candidate.reward for candidate in selection.chosen] if query.needs_calls else None,
        )

    async def _plan_pairs(self, query: SnapshotQuery) -> SnapshotPlan:
        watermark = await self.preferences.watermark(query.role, "preferences")
        opinions = await self.preferences.opinions(query.role)
        query = await self._without_raters(query, opinions)
        query = query.with_filter(with_human_share(query.filter, self.amounts))
        unlisted = max(0, await self.preferences.count(query.role) - len(opinions))
        selection = await self._choose_pairs(query, opinions, unlisted)
        share = query.filter.min_human_share or 0.0
        nothing = f"none of the pairs is of a person: dataset.filter.min_human_share {share:g} leaves none, 0 takes all"
        is_all_left_out = not selection.chosen and selection.left_out.get(BEYOND_HUMAN_SHARE)

        return SnapshotPlan(
            ids=[opinion.preference_id for opinion in selection.chosen],
            turns=[1] * len(selection.chosen),
            left_out=selection.left_out,
            nouns=("preference", "preferences"),
            rows=lambda ids: self._pair_rows(query.role, selection, ids),
            watermarks={"RL_FEEDBACK": watermark},
            minimum=self._least(query),
            floor=self.amounts.least(query.algorithm, 1),
            problem=nothing if is_all_left_out else None,
            tasks=[opinion.group_key or opinion.preference_id for opinion in selection.chosen],
            filter=query.filter,
        )

    async def _choose_pairs(self, query: SnapshotQuery, opinions: Sequence[Opinion], unlisted: int) -> PairSelection:
        """With a share of people to keep, only pairs whose rows can be made: any other would change that share."""
        unusable: dict[str, str] = {}
        tried = set[str]()
        while True:
            rules = PairRules(query.filter, query.consumed.preferences, self.pairs_per_group, unusable)
            selection = await asyncio.to_thread(select_pairs, opinions, rules, query.dataset.sample_size, unlisted)
            new = [pair.preference_id for pair in selection.chosen if pair.preference_id not in tried]
            if not query.filter.min_human_share or not new:
                return selection
            for ids in (new[start : start + TURNS_AT_A_TIME] for start in range(0, len(new), TURNS_AT_A_TIME)):
                made = await self._pair_rows(query.role, selection, ids)
                unusable |= {key: row for key, row in zip(ids, made, strict=True) if isinstance(row, str)}
            tried.update(new)

    async def _pair_rows(self, role: str, selection: PairSelection, ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
        stored, votes = await self.preferences.preferences(role, ids), selection.votes
        return await asyncio.to_thread(lambda: [pair_row(stored.get(key), votes[key]) for key in ids])

    def _least(self, query: SnapshotQuery) -> int:
        """The fewest rows that a job takes: the request's, but no fewer than the installation's floor."""
        return self.amounts.least(query.algorithm, query.dataset.min_rows)

    async def _without_raters(self, query: SnapshotQuery, opinions: Sequence[Opinion]) -> SnapshotQuery:
        """The query without the raters in quarantine, as these opinions show, and without those that are banned."""
        raters = await self.raters_left_out(query.role, opinions)
        return query.with_filter(without_raters(query.filter, raters))

    async def _plan_labels(self, query: SnapshotQuery) -> SnapshotPlan:
        watermark = await self.preferences.watermark(query.role, "feedback")
        thumbs = await self.preferences.thumbs(query.role)
        query = await self._without_raters(query, ())
        catalogue = await self.trajectories.catalogue(query.role, query.held)
        rules = TrajectoryRules(query.filter, False, query.consumed.labelled, query.generations)
        selection = await asyncio.to_thread(
            select_labels, thumbs, catalogue.candidates, rules, query.dataset.sample_size
        )
        chosen = selection.labels

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            stored = await self.trajectories.trajectories(query.role, ids)
            turns = await self.trajectories.turns_of(query.role, stored.values())
            return await asyncio.to_thread(
                lambda: [label_row(stored[key], turns[key], chosen[key]) for key in ids if key in stored]
            )

        ups = sum(chosen.values())
        one_sided = f"all {len(chosen)} thumbs are {'up' if ups else 'down'}: there is nothing to tell apart"
        return SnapshotPlan(
            ids=list(chosen),
            turns=[pair.turns for pair in selection.chosen],
            left_out=selection.left_out,
            nouns=(f"trajectory with a reward and thumbs {self.trajectories.reach}", "trajectories with thumbs"),
            rows=rows,
            watermarks={**catalogue.watermarks, "RL_FEEDBACK": watermark},
            minimum=self._least(query),
            reward_function=catalogue.reward_function,
            waiting=catalogue.waiting,
            problem=one_sided if chosen and ups in (0, len(chosen)) else None,
            tasks=list(chosen),
            filter=query.filter,
        )

    async def _plan_executions(self, query: SnapshotQuery) -> SnapshotPlan:
        """The newest ones, by any planner and with any end: each has the chances that it was chosen by."""
        stored = await self.executions.stored(query.role)
        chosen = await self.executions.newest(query.role, query.dataset.sample_size, query.filter.date_range)
        others = max(0, stored.executions - len(chosen))

        async def rows(ids: Sequence[str]) -> Sequence[SnapshotRow | str]:
            executions = await self.executions.executions(query.role, ids)
            rewards = await self.executions.rewards(query.role, ids)
            return [
                SnapshotRow(execution_row(executions[key], rewards.get(key)), RowOrigin((key,), WORKFLOWS))
                for key in ids
                if key in executions
            ]

        return SnapshotPlan(
            ids=chosen,
            turns=[1] * len(chosen),
            left_out={"older_or_outside_dates": others} if others else {},
            nouns=("execution of a workflow", "executions of workflows"),
            rows=rows,
            watermarks={"RL_WORKFLOWS": stored.watermark},
            minimum=self._least(query),
        )


def scored(candidates: Sequence[Candidate], transform: str) -> Mapping[str, Scored]:
    """Reward and baseline of every candidate. Baselines are folded over all of the role's own traffic, oldest first."""
    transformed = TRANSFORMS[transform]
    counted = [candidate for candidate in candidates if not candidate.arms & LEFT_OUT_ARMS]
    history = [(c.trajectory_id, c.task_key, transformed(c.reward)) for c in sorted(counted, key=age_order)]
    by_id = baselines(history)
    return {
        c.trajectory_id: Scored(
            task_key=c.task_key,
            reward=transformed(c.reward),
            raw_reward=c.reward,
            baseline=by_id.get(c.trajectory_id),
            model_score=c.model_score,
        )
        for c in candidates
    }
