"""A snapshot's rows are read a few at a time; a file that cannot be read is unusable data, and no crash."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.contract.snapshot import LabelRow
from ratchet.core.datasets import parquet
from ratchet.core.datasets.parquet import DECODED
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.child_run import StoredTrajectories, read_examples, read_snapshot
from tests.support.snapshot_rows import call, label_row, trajectory_row, write_rows

# pyarrow ships no types: its members are unknown to the type checker.
ARROW: Any = pa
PARQUET: Any = pq
SOUND = b'[{"role": "user"}]'


@pytest.mark.parametrize("prompt", [b"[{", b'[{"role": "\xff"}]', b'[{"a": ' + b"[" * 100_000, b'["x"]'])
def test_a_row_that_cannot_be_read_makes_the_snapshot_unusable(tmp_path: Path, prompt: bytes) -> None:
    columns = {
        "trajectory_id": [b"t"],
        "prompt": [prompt],
        "completion": [SOUND],
        "tools": [b"[]"],
        "source": [b"thumbs"],
    }
    texts = {name: ARROW.array(values, ARROW.binary()).view(ARROW.string()) for name, values in columns.items()}
    PARQUET.write_table(ARROW.table({**texts, "label": [True]}), tmp_path / "rows.parquet")
    with pytest.raises(DataUnusable, match="the snapshot cannot be read"):
        read_snapshot(tmp_path / "rows.parquet", LabelRow)


def test_the_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.parquet", [label_row(n, label=True) for n in range(40)])
    table = PARQUET.read_table(file)
    prompts = table.column("prompt").to_pylist()
    prompts[37] = "[{"
    changed = table.set_column(table.schema.get_field_index("prompt"), "prompt", ARROW.array(prompts))
    PARQUET.write_table(changed, file)
    with pytest.raises(DataUnusable, match="from row 38 on"):
        read_snapshot(file, LabelRow)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_file_with_changed_bytes_is_unusable_data_and_no_fault_of_the_disk(tmp_path: Path, share: float) -> None:
    """Its digest was right when it was fetched: to fetch it again gives the same bytes."""
    file = write_rows(tmp_path / "rows.parquet", [trajectory_row(n) for n in range(10)])
    content = bytearray(file.read_bytes())
    place = 4 + int(share * len(content))
    content[place : place + 60] = b"\xff" * 60
    file.write_bytes(content)
    with pytest.raises(DataUnusable, match="the snapshot cannot be read"):
        list(StoredTrajectories(file, "sft"))


COUNT = 2 * DECODED + 3


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Trajectories that have both what was spoken and what the policy's calls were."""
    rows = [
        trajectory_row(
            number,
            messages=[{"role": "user", "content": "Where?"}, {"role": "assistant", "content": f"Lost, {number}."}],
            calls=[call([3, 4, number], [5, 6], [-0.5, -1.5])],
        )
        for number in range(COUNT)
    ]
    return write_rows(tmp_path / "rows.parquet", rows)


def test_algorithm_reads_only_its_rows_in_order_as_often_as_it_likes(
    snapshot: Path,
) -> None:
    of_calls, of_chats = StoredTrajectories(snapshot, "rloo"), StoredTrajectories(snapshot, "sft")
    assert (len(of_calls), len(of_chats)) == (COUNT, COUNT)
    for _ in range(2):
        assert [(one.trajectory_id, *one.token_ids) for one in of_calls] == [
            (f"t{number}", 3, 4, number, 5, 6) for number in range(COUNT)
        ]
    assert not any(one.messages for one in of_calls)
    assert [one.messages[-1]["content"] for one in of_chats] == [f"Lost, {number}." for number in range(COUNT)]
    assert not any(len(one.token_ids) or one.spans or one.sequences for one in of_chats)


def test_a_file_that_was_cut_is_unusable_before_anything_is_loaded(snapshot: Path) -> None:
    snapshot.write_bytes(snapshot.read_bytes()[:-100])
    with pytest.raises(DataUnusable, match="the snapshot cannot be read"):
        read_examples(snapshot, "rloo")


def test_a_file_that_is_not_there_is_no_fault_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_examples(tmp_path / "rows.parquet", "rloo")


def test_memory_that_is_lacking_is_no_fault_of_the_data() -> None:
    with pytest.raises(MemoryError), parquet._readable("rows", count(1)):
        ARROW.allocate_buffer(10**15)


def test_a_reward_that_is_null_is_unusable_data(snapshot: Path) -> None:
    table = PARQUET.read_table(snapshot)
    place = table.schema.get_field_index("reward")
    rewards = ARROW.array([None, *table["reward"].to_pylist()[1:]], ARROW.float64())
    PARQUET.write_table(table.set_column(place, "reward", rewards), snapshot)
    with pytest.raises(DataUnusable, match=r"the snapshot cannot be read.*reward"):
        list(read_examples(snapshot, "rloo"))


def test_a_snapshot_without_rows_is_unusable_data(snapshot: Path) -> None:
    PARQUET.write_table(PARQUET.read_table(snapshot).slice(0, 0), snapshot)
    with pytest.raises(DataUnusable, match="the snapshot holds no rows"):
        read_examples(snapshot, "sft")
