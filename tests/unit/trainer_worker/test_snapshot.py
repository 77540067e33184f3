"""A file of rows that cannot be read is unusable data, and no crash of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contract.snapshot import LabelRow
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.child_run import read_snapshot

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
