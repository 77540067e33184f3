"""What a snapshot holds is chosen beside the event loop, whose services must go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contract.training import Dataset
from ratchet.datasets.domain.selection import Candidate, Consumed
from ratchet.datasets.selector import SnapshotQuery, SnapshotSelector
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

    async def catalogue(self, role: str) -> SimpleNamespace:
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


@pytest.mark.parametrize("algorithm", ["rloo", "sft", "dpo"])
async def test_choosing_from_a_long_history_is_no_work_of_the_event_loop(algorithm: str) -> None:
    candidates, opinions = Watched([candidate(1), candidate(2)]), Watched([])
    stored: Any = Stored(candidates, opinions)
    selector = SnapshotSelector(stored, stored, AMOUNTS, pairs_per_group=4)
    dataset = Dataset(source="clickhouse", sample_size=10)
    await selector.select(SnapshotQuery("support", algorithm, dataset, Consumed()))
    seen = opinions.threads if algorithm == "dpo" else candidates.threads
    assert seen
    assert threading.get_ident() not in seen
