"""What a snapshot holds is chosen beside the event loop, whose services must go on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.core.contract import Preference
from ratchet.core.contract.training import Dataset, DatasetFilter
from ratchet.core.datasets.domain.labels import CONTRADICTED, NO_REWARD, Thumb, select_labels
from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.datasets.domain.selection import CONSUMED, EXCLUDED_RATER, Candidate, Consumed, TrajectoryRules
from ratchet.core.datasets.selector import SnapshotQuery, SnapshotSelector
from tests.support.training import AMOUNTS, NOON


class Watched(list[Any]):
    """Remembers the threads that went through it."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[Any]:
        self.threads.add(threading.get_ident())
        return super().__iter__()


class Stored:
    """Trajectories and preferences of a role."""

    reach = "ever"

    def __init__(self, candidates: Watched, opinions: Watched) -> None:
        self.candidates = candidates
        self._opinions = opinions

    async def catalogue(self, role: str, held: object) -> SimpleNamespace:
        assert held is None
        return SimpleNamespace(
            candidates=self.candidates, watermarks={}, reward_function=f"of {role} 1", waiting=0, unlisted=0
        )

    async def watermark(self, role: str, table: str) -> int:
        return len(role + table)

    async def count(self, role: str) -> int:
        return len(role)

    async def opinions(self, role: str) -> Watched:
        assert role
        return self._opinions

    async def thumbs(self, role: str) -> list[Thumb]:
        return [Thumb("1", up=True, rater=role)]

    async def preferences(self, role: str, ids: Sequence[str]) -> dict[str, Preference]:
        assert role
        return {name: preference(name) for name in ids if "erased" not in name}


def preference(name: str) -> Preference:
    answer = "" if "empty" in name else "yes"
    source = name.split(maxsplit=1)[0]
    return Preference(preference_id=name, prompt=name, chosen=answer, rejected="no", source=source)


def opinion(name: str, sequence: int) -> Opinion:
    return Opinion(name, name.split(maxsplit=1)[0], None, None, NOON, sequence, prompt=name, chosen="x", rejected="y")


def candidate(number: int) -> Candidate:
    return Candidate(
        trajectory_id=str(number),
        task_key="task",
        ended_at=NOON,
        reward=0.5,
        confidence=1.0,
        source="client",
        domain=None,
        profile=None,
        turns=1,
        arms=frozenset({"stable"}),
        trainable_calls=1,
    )


@pytest.mark.parametrize("algorithm", ["rloo", "sft", "dpo", "kto"])
async def test_choosing_from_a_long_history_is_no_work_of_the_event_loop(algorithm: str) -> None:
    candidates, opinions = Watched([candidate(1), candidate(2)]), Watched([])
    stored: Any = Stored(candidates, opinions)
    selector = SnapshotSelector(stored, stored, stored, AMOUNTS, pairs_per_group=4)
    dataset = Dataset(source="clickhouse", sample_size=10)
    await selector.select(SnapshotQuery("support", algorithm, dataset, Consumed()))
    seen = opinions.threads if algorithm == "dpo" else candidates.threads
    assert seen
    assert threading.get_ident() not in seen


def test_trajectories_with_thumbs_left_out_are_counted_by_reason() -> None:
    def thumb(number: int, *, up: bool = True, rater: str = "ann") -> Thumb:
        return Thumb(str(number), up, rater)

    thumbs = [thumb(1), thumb(2, up=False), thumb(3), thumb(3, up=False, rater="cid"), thumb(4), thumb(5, rater="bob")]
    rules = TrajectoryRules(DatasetFilter(excluded_raters=["bob"]), needs_calls=False, consumed=frozenset({"2"}))
    selection = select_labels(thumbs, [candidate(number) for number in (1, 2, 3, 5, 6)], rules, sample_size=10)
    assert [one.trajectory_id for one in selection.chosen] == ["1"]
    assert selection.labels == {"1": True}
    assert selection.left_out == {CONSUMED: 1, CONTRADICTED: 1, NO_REWARD: 1, EXCLUDED_RATER: 1}


async def test_people_keep_their_share_of_the_rows_that_can_be_made() -> None:
    names = ["human 1", "human 2", "human empty", "human erased", *(f"derived {n}" for n in range(8))]
    stored: Any = Stored(Watched([]), Watched([opinion(name, number) for number, name in enumerate(names)]))
    selector = SnapshotSelector(stored, stored, stored, AMOUNTS, pairs_per_group=4)
    chosen = DatasetFilter(min_human_share=0.4)
    query = SnapshotQuery("support", "dpo", Dataset(source="clickhouse", sample_size=100, filter=chosen), Consumed())
    plan = await selector.select(query)
    rows = [row for row in await plan.rows(plan.ids) if not isinstance(row, str)]
    assert Counter(row.origin.source for row in rows) == {"human": 2, "derived": 3}
    assert plan.left_out == {"empty": 1, "not_stored": 1, "beyond_human_share": 5}


async def test_raters_in_quarantine_teach_nothing_and_are_named() -> None:
    async def in_quarantine(role: str, opinions: Sequence[Opinion]) -> Sequence[str]:
        return ["mal"] if opinions and role == "support" else []

    opinions = [replace(opinion(f"human {n}", n), rater="mal" if n else "ann") for n in range(3)]
    stored: Any = Stored(Watched([]), Watched(opinions))
    selector = SnapshotSelector(stored, stored, stored, AMOUNTS, 4, in_quarantine)
    plan = await selector.select(
        SnapshotQuery("support", "dpo", Dataset(source="clickhouse", sample_size=9), Consumed())
    )
    assert (plan.ids, plan.left_out) == (["human 0"], {EXCLUDED_RATER: 2, "beyond_history": 4})
    assert plan.filter is not None
    assert plan.filter.excluded_raters == ["mal"]


async def test_a_share_of_people_without_any_is_refused_in_words() -> None:
    stored: Any = Stored(Watched([]), Watched([opinion("derived 1", 1)]))
    selector = SnapshotSelector(stored, stored, stored, AMOUNTS, pairs_per_group=4)
    chosen = DatasetFilter(min_human_share=0.8)
    query = SnapshotQuery("support", "dpo", Dataset(source="clickhouse", sample_size=100, filter=chosen), Consumed())
    plan = await selector.select(query)
    assert (
        plan.problem == "none of the pairs is of a person: dataset.filter.min_human_share 0.8 leaves none, 0 takes all"
    )


@pytest.mark.parametrize(("least", "minimum"), [(None, 500), (50, 50), (3, 8), (900, 900)])
async def test_pairs_have_a_least_number_that_a_request_lowers_in_words(least: int | None, minimum: int) -> None:
    stored: Any = Stored(Watched([]), Watched([]))
    selector = SnapshotSelector(stored, stored, stored, replace(AMOUNTS, pairs=500), pairs_per_group=4)
    dataset = Dataset(source="clickhouse", sample_size=1000, min_rows=least)
    assert (await selector.select(SnapshotQuery("support", "dpo", dataset, Consumed()))).minimum == minimum
    assert (await selector.select(SnapshotQuery("support", "sft", dataset, Consumed()))).minimum == (least or 1)


@pytest.mark.parametrize(("share", "kept"), [(None, {"human": 4, "derived": 1}), (0.0, {"human": 4, "derived": 8})])
async def test_people_have_a_share_that_a_request_lowers_in_words(share: float | None, kept: dict[str, int]) -> None:
    names = [*(f"human {n}" for n in range(4)), *(f"derived {n}" for n in range(8))]
    stored: Any = Stored(Watched([]), Watched([opinion(name, number) for number, name in enumerate(names)]))
    selector = SnapshotSelector(stored, stored, stored, replace(AMOUNTS, human_share=0.8), pairs_per_group=4)
    chosen = DatasetFilter(min_human_share=share)
    query = SnapshotQuery("support", "dpo", Dataset(source="clickhouse", sample_size=100, filter=chosen), Consumed())
    plan = await selector.select(query)
    assert Counter(name.split()[0] for name in plan.ids) == kept
    assert plan.filter is not None
    assert plan.filter.min_human_share == (0.8 if share is None else 0.0)


@pytest.mark.parametrize(("least", "minimum"), [(None, 8), (3, 8), (500, 500)])
async def test_request_may_only_raise_the_fewest_rows(least: int | None, minimum: int) -> None:
    stored: Any = Stored(Watched([]), Watched([]))
    selector = SnapshotSelector(stored, stored, stored, AMOUNTS, pairs_per_group=4)
    dataset = Dataset(source="clickhouse", sample_size=1000, min_rows=least)
    assert (await selector.select(SnapshotQuery("support", "dpo", dataset, Consumed()))).minimum == minimum
