"""The same data makes the same snapshot, byte for byte: in every process, in whatever order the stores answer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.core.contract import Preference
from ratchet.core.contract.snapshot import SNAPSHOT, SnapshotHeader
from ratchet.core.contract.training import Dataset, DatasetFilter
from ratchet.core.datasets.domain.labels import Thumb
from ratchet.core.datasets.domain.pairs import Opinion
from ratchet.core.datasets.domain.selection import Candidate, Consumed
from ratchet.core.datasets.s3_snapshots import SnapshotWriter
from ratchet.core.datasets.selector import SnapshotQuery, SnapshotSelector
from tests.support.blobs import MemoryBlobs
from tests.support.training import AMOUNTS, NOON, after, conversation, trajectory

NUMBERS = range(12)
FILTERS = {
    "rloo": DatasetFilter(min_reward=0.2, max_reward=0.8, balance_domains=True),
    "dpo": DatasetFilter(min_human_share=0.5, excluded_raters=["rater 1"]),
    "kto": DatasetFilter(min_reward=0.1, excluded_raters=["rater 1"]),
}


class Stored:
    """A role's data, answered from the first to the last or the other way round."""

    reach = "ever"

    def __init__(self, step: int) -> None:
        self._step = step

    async def catalogue(self, role: str, held: object) -> SimpleNamespace:
        assert held is None
        candidates = [
            Candidate(
                trajectory_id=str(number),
                task_key=f"{role} {number % 4}",
                ended_at=after(number // 2),
                reward=number / 12,
                confidence=1.0,
                source="client",
                domain=("billing", "travel", None)[number % 3],
                profile=None,
                turns=2,
                arms=frozenset({"stable", "canary"}),
                trainable_calls=2,
                versions=frozenset({1, 2, 3}),
            )
            for number in NUMBERS
        ]
        marks = {"RL_TRAJECTORIES": 12, "RL_REWARDS": 12}
        return SimpleNamespace(
            candidates=candidates[:: self._step], watermarks=marks, reward_function="f 1", waiting=0, unlisted=0
        )

    async def trajectories(self, _role: str, ids: Sequence[str]) -> dict[str, Any]:
        turns = {name: conversation(name, [3, 2])[0] for name in ids}
        return {name: trajectory(name, turns=turns[name]) for name in list(ids)[:: self._step]}

    async def turns_of(self, _role: str, trajectories: Any) -> dict[str, Any]:
        made = [(one.trajectory_id, conversation(one.trajectory_id, [3, 2])[0]) for one in trajectories]
        return {name: turns[:: self._step] for name, turns in made}

    async def watermark(self, _role: str, _table: str) -> int:
        return 12

    async def count(self, _role: str) -> int:
        return 12

    async def opinions(self, _role: str) -> list[Opinion]:
        made = [
            Opinion(
                str(number),
                ("human", "derived")[number % 2],
                f"rater {number % 3}",
                None,
                NOON,
                number,
                prompt=str(number // 2),
                chosen="a",
                rejected="b",
            )
            for number in NUMBERS
        ]
        return made[:: self._step]

    async def preferences(self, _role: str, ids: Sequence[str]) -> dict[str, Preference]:
        made = {name: Preference(preference_id=name, prompt=name, chosen="a", rejected="b", source="s") for name in ids}
        return dict(list(made.items())[:: self._step])

    async def thumbs(self, _role: str) -> list[Thumb]:
        """Oldest first, as their reader gives them whatever the store does."""
        return [Thumb(str(number), number % 2 == 0, f"rater {number % 3}") for number in NUMBERS]


async def digest_of(algorithm: str, step: int) -> str:
    """The digest of the manifest, which names that of the rows."""
    stored: Any = Stored(step)
    dataset = Dataset(source="clickhouse", sample_size=8, filter=FILTERS[algorithm])
    query = SnapshotQuery("support", algorithm, dataset, Consumed())
    plan = await SnapshotSelector(stored, stored, stored, AMOUNTS, pairs_per_group=4).select(query)
    header = SnapshotHeader(
        kind=SNAPSHOT,
        role="support",
        training_job_id="",
        algorithm=algorithm,
        created_at=NOON,
        filters={},
        sample_size=8,
        reward_function=plan.reward_function,
        reward_transform=query.reward_transform,
        watermarks=dict(plan.watermarks),
        parent_policy=None,
    )
    with SnapshotWriter(MemoryBlobs(), query.format) as writer:
        for ids in plan.chunks(3):
            writer.add([row for row in await plan.rows(ids) if not isinstance(row, str)])
        assert writer.rows > 2
        return writer.publish(header, dict(plan.left_out)).digest


@pytest.mark.parametrize("algorithm", FILTERS)
async def test_the_order_of_the_stores_answers_changes_no_digest(algorithm: str) -> None:
    assert await digest_of(algorithm, 1) == await digest_of(algorithm, -1)


def test_every_process_makes_the_same_digests() -> None:
    other = subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    assert other.stdout.split() == [asyncio.run(digest_of(name, 1)) for name in FILTERS]


if __name__ == "__main__":
    for name in FILTERS:
        sys.stdout.write(f"{asyncio.run(digest_of(name, 1))}\n")
