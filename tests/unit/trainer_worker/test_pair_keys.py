"""What a hold-out keeps together: by names, and by what pairs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hypothesis import given, strategies as st

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import PairRow
from ratchet.trainer_worker.training.child_run import read_snapshot
from ratchet.trainer_worker.training.learner.pairs import RowPair, hold_out_keys, improvement, shares, split
from tests.support.snapshot_rows import pair_row
from tests.support.trainer_runs import write_pairs

SYSTEM = {"role": "system", "content": "Help."}
TRIES = st.tuples(st.integers(0, 5), st.integers(0, 3))
"""(task, number of the try)."""


def conversation(task: int, number: int) -> list[JsonObject]:
    """Tries of a task that has only an id: the user says other words in every one, but for pairs of neighbours."""
    return [
        SYSTEM,
        {"role": "user", "content": f"task {task}, asked in way {number // 2}"},
        {"role": "assistant", "content": f"answer {number}"},
    ]


def paired(number: int, chosen: tuple[int, int], rejected: tuple[int, int]) -> PairRow:
    """As it is exported: the prompt is what both have in common."""
    one, other = conversation(*chosen), conversation(*rejected)
    common = next(place for place in range(4) if place == 3 or one[place] != other[place])
    return pair_row(
        number,
        prompt=one[:common],
        chosen=one[common:],
        rejected=other[common:],
        chosen_trajectory_id=f"try {chosen}",
        rejected_trajectory_id=f"try {rejected}",
    )


def tries(pairs: list[PairRow], part: list[int]) -> set[str | None]:
    return {name for index in part for name in (pairs[index].chosen_trajectory_id, pairs[index].rejected_trajectory_id)}


@given(st.lists(st.tuples(TRIES, TRIES), min_size=1, max_size=30), st.floats(0, 1), st.integers(0, 3))
def test_no_try_is_on_both_sides_of_a_hold_out(sides: list[Any], fraction: float, seed: int) -> None:
    pairs = [paired(number, *two) for number, two in enumerate(sides)]
    learn, held = split([hold_out_keys(pair) for pair in pairs], fraction, seed)
    assert not tries(pairs, learn) & tries(pairs, held)


def test_tasks_known_only_by_what_they_share_are_held_out_whole() -> None:
    pairs = [
        paired(3 * task + offset, (task, 0), (task, other))
        for task in range(4)
        for offset, other in enumerate((1, 2, 3))
    ]
    learn, held = split([hold_out_keys(pair) for pair in pairs], 0.25, seed=0)
    assert (len(learn), len(held)) == (9, 3)
    assert len({index // 3 for index in held}) == 1


def test_a_pair_that_shares_nothing_stands_alone() -> None:
    alone = pair_row(7, prompt=[SYSTEM])
    assert hold_out_keys(alone) == ("pair:p7",)


def test_the_tries_of_a_pair_are_read_from_the_snapshot(tmp_path: Path) -> None:
    columns = {"chosen_trajectory_id": "a", "rejected_trajectory_id": "b"}
    (pair,) = read_snapshot(write_pairs(tmp_path / "pairs.parquet", [columns]), PairRow)
    assert hold_out_keys(pair) == ("trajectory:a", "trajectory:b")


KEYS = st.lists(st.tuples(st.integers(0, 9), st.integers(10, 14)), min_size=1, max_size=40)


@given(KEYS, st.floats(0, 1), st.integers(0, 5))
def test_no_name_is_in_both_parts_and_nothing_is_lost(keys: list[tuple[int, int]], fraction: float, seed: int) -> None:
    learn, held = split(keys, fraction, seed)
    assert sorted([*learn, *held]) == list(range(len(keys)))
    assert len(held) <= round(fraction * len(keys))
    names = [{name for index in part for name in keys[index]} for part in (learn, held)]
    assert not names[0] & names[1]
    assert split(keys, fraction, seed) == (learn, held)


def test_examples_that_share_a_name_through_others_stay_together() -> None:
    keys = [("prompt a", "task 1"), ("prompt b", "task 1"), ("prompt b", "task 2"), ("prompt c", "task 3")]
    learn, held = split(keys, 0.25, seed=0)
    assert (learn, held) == ([0, 1, 2], [3])


def test_another_seed_holds_out_others() -> None:
    keys = [(f"prompt {number}",) for number in range(40)]
    parts = [split(keys, 0.25, seed)[1] for seed in range(3)]
    assert [len(held) for held in parts] == [10, 10, 10]
    assert parts[0] != parts[1] != parts[2]


def test_nothing_is_held_out_unless_it_is_asked_for() -> None:
    assert split([("a",), ("b",)], 0.0, seed=0) == ([0, 1], [])


def test_pairs_of_one_task_are_one_observation() -> None:
    pairs = [RowPair([], [], (f"group:{number // 4}",)) for number in range(16)]
    before, after = shares(pairs, torch.zeros(16)), shares(pairs, torch.ones(16))
    assert (before, after) == ([0.0] * 4, [1.0] * 4)
    one_task = [RowPair([], [], ("group:0",))] * 16
    gain, interval = improvement(shares(one_task, torch.zeros(16)), shares(one_task, torch.ones(16)))
    assert gain == 1.0
    assert interval["improvement_low"] < 0
    uneven = [*pairs[:4], RowPair([], [], ("group:4",))]
    assert shares(uneven, torch.tensor([1.0, 0.5, 0.0, 0.5, 1.0])) == [0.5, 1.0]
