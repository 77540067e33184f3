"""A file of rows that cannot be read is unusable data, and no crash of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contract.snapshot import LabelRow
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.child_run import StoredTrajectories, read_snapshot
from tests.support.snapshot_rows import label_row, trajectory_row, write_rows

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
def test_a_file_with_changed_bytes_is_unusable_data_and_no_fault_of_the_disk(tmp_path: Path, share: float) -> None:
    """Its digest was right when it was fetched: to fetch it again gives the same bytes."""
    file = write_rows(tmp_path / "rows.parquet", [trajectory_row(n) for n in range(10)])
    content = bytearray(file.read_bytes())
    place = 4 + int(share * len(content))
    content[place : place + 60] = b"\xff" * 60
    file.write_bytes(content)
    with pytest.raises(DataUnusable, match="the snapshot cannot be read"):
        list(StoredTrajectories(file, "sft"))
