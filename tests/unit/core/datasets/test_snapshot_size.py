"""A snapshot grows with the distinct tokens of its conversations, not with the square of their calls."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.datasets.parquet import RowWriter, read_rows
from tests.bench.bench_snapshot import logged

TRAJECTORIES = 3


def bytes_a_token(file: Path, calls: int, tokens: int) -> float:
    writer = RowWriter(file, TrajectoryRow)
    writer.add([logged(number, calls, tokens) for number in range(TRAJECTORIES)])
    writer.close()
    return file.stat().st_size / (TRAJECTORIES * calls * tokens)


def test_a_token_takes_some_four_bytes_however_many_calls_there_are(tmp_path: Path) -> None:
    """Random ids and log-probabilities, which compress worst: half of the tokens have both."""
    few, many = (bytes_a_token(tmp_path / f"{calls}.parquet", calls, 500) for calls in (5, 40))
    assert many < few
    assert many < 4.5


def test_what_is_read_holds_each_token_once(tmp_path: Path) -> None:
    bytes_a_token(tmp_path / "rows.parquet", 10, 100)
    for row in read_rows(tmp_path / "rows.parquet", TrajectoryRow, without=["messages"], as_arrays=True):
        assert (len(row.token_ids), len(row.logprobs), len(row.sequences)) == (1000, 500, 1)
