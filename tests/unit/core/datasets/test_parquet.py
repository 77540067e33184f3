"""Rows in Parquet: columns follow from the struct, and a file gives back the rows that were written."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from ratchet.core.contract.snapshot import (
    ROWS,
    CallSpan,
    ChatPart,
    ExecutionRow,
    LabelRow,
    PairRow,
    Row,
    TokenSequence,
    TrajectoryRow,
)
from ratchet.core.datasets.domain.executions import execution_row
from ratchet.core.datasets.parquet import DECODED, RowWriter, arrow_schema, read_rows
from ratchet.core.errors import Rejected
from tests.support.executions import execution
from tests.support.snapshot_rows import call, label_row, pair_row, trajectory_row, write_rows

# pyarrow ships no types: its members are unknown to the type checker.
ARROW: Any = pa
PARQUET: Any = pq

COLUMNS: dict[type[Row], str] = {
    TrajectoryRow: """\
trajectory_id: string not null
task_key: string not null
reward: double not null
raw_reward: double not null
baseline: double
success: bool
policy_version: int64
source: string not null
messages: string not null
tools: string not null
calls: string not null""",
    PairRow: """\
preference_id: string not null
prompt: string not null
chosen: string not null
rejected: string not null
tools: string not null
source: string not null
rater: string
confidence: double
domain: string
chosen_trajectory_id: string
rejected_trajectory_id: string
group_key: string""",
    LabelRow: """\
trajectory_id: string not null
prompt: string not null
completion: string not null
label: bool not null
tools: string not null
source: string not null""",
    ExecutionRow: """\
workflow_id: string not null
started_at: timestamp[ms, tz=UTC] not null
ended_at: timestamp[ms, tz=UTC] not null
instruction: string not null
sub_tasks: string not null
runs: string not null
made_by: string
confidence: double
status: string not null
success: bool not null
cost_usd: double not null
latency_ms: double not null
reward: double
policy_version: int64 not null
policy_digest: string not null
arm: string not null
weight: double not null""",
}
"""The columns of version 0.1: stored files have them."""
LATER = {
    TrajectoryRow: [
        "learn_from: int64 not null",
        "earlier: string not null",
        "token_ids: list<element: int32 not null> not null",
        "  child 0, element: int32 not null",
        "logprobs: list<element: float not null> not null",
        "  child 0, element: float not null",
        "sequences: string not null",
        "spans: string not null",
        "words: string not null",
        "model_score: double",
    ]
}
"""The columns that were added since, which files may lack."""

CHAT = [{"role": "user", "content": "Où?"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]
WRITTEN: list[Row] = [
    replace(trajectory_row(messages=CHAT), calls=[call([1, 2], [3], [-0.5], policy_version=3, policy_digest="d")]),
    trajectory_row(messages=CHAT, learn_from=1, earlier=[ChatPart(messages=CHAT, learn_from=0)]),
    trajectory_row(
        token_ids=[1, 2, 2**31 - 1],
        logprobs=[-0.5],
        sequences=[TokenSequence(size=3)],
        spans=[CallSpan(turn_id="c", sequence=0, begin=2, size=1, scored=True, temperature=0.7, trainable=True)],
    ),
    trajectory_row(baseline=0.25, success=False, policy_version=3, reward=-1e300),
    pair_row(prompt=CHAT[:1], chosen=CHAT[1:], rejected=[{"role": "assistant", "content": ""}], confidence=0.5),
    pair_row(rater="r", domain="d", chosen_trajectory_id="a", rejected_trajectory_id="b", group_key="g"),
    label_row(label=True, prompt=CHAT[:1], completion=CHAT[1:], tools=[{"type": "function"}]),
    execution_row(execution(), 0.25),
    execution_row(execution(plan=None, status="failed"), None),
]


@pytest.mark.parametrize("kind", list(ROWS.values()))
def test_the_columns_are_those_of_stored_files(kind: type[Row], tmp_path: Path) -> None:
    assert arrow_schema(kind).to_string() == "\n".join([COLUMNS[kind], *LATER.get(kind, [])])
    row = next(row for row in WRITTEN if isinstance(row, kind))
    assert PARQUET.read_schema(write_rows(tmp_path / "rows.parquet", [row])).equals(arrow_schema(kind))


@pytest.mark.parametrize("row", WRITTEN)
def test_a_row_comes_back_as_it_was_written(row: Row, tmp_path: Path) -> None:
    assert list(read_rows(write_rows(tmp_path / "rows.parquet", [row]), type(row))) == [row]


def test_a_file_without_later_columns_is_read(tmp_path: Path) -> None:
    row = trajectory_row(messages=CHAT)
    whole = PARQUET.read_table(write_rows(tmp_path / "rows.parquet", [row]))
    PARQUET.write_table(
        whole.drop_columns(["learn_from", "earlier", "token_ids", "logprobs", "sequences", "spans", "model_score"]),
        tmp_path / "older.parquet",
    )
    assert list(read_rows(tmp_path / "older.parquet", TrajectoryRow)) == [row]


def test_all_rows_come_back_in_their_order(tmp_path: Path) -> None:
    rows = [label_row(number, label=number % 2 == 0) for number in range(2 * DECODED + 1)]
    assert list(read_rows(write_rows(tmp_path / "rows.parquet", rows), LabelRow)) == rows


def test_numbers_are_read_as_arrays_and_unasked_lists_are_empty(tmp_path: Path) -> None:
    rows = [trajectory_row(n, token_ids=list(range(n)), messages=CHAT) for n in range(DECODED + 2)]
    file = write_rows(tmp_path / "rows.parquet", rows)
    read = list(read_rows(file, TrajectoryRow, without=["messages"], as_arrays=True))
    assert [row.messages for row in read] == [[]] * len(rows)
    arrays: list[Any] = [row.token_ids for row in read]
    assert all(array.dtype == "int32" and array.base is None for array in arrays)
    assert [array.tolist() for array in arrays] == [row.token_ids for row in rows]


@pytest.mark.parametrize("values", [[None], [2**40], ["a"], [0.5]])
def test_what_is_no_token_id_makes_a_file_unreadable(values: list[Any], tmp_path: Path) -> None:
    record = PARQUET.read_table(write_rows(tmp_path / "rows.parquet", [trajectory_row()])).to_pylist()[0]
    PARQUET.write_table(ARROW.Table.from_pylist([{**record, "token_ids": values}]), tmp_path / "odd.parquet")
    with pytest.raises(Rejected, match="no TrajectoryRows can be read"):
        list(read_rows(tmp_path / "odd.parquet", TrajectoryRow))


def test_a_list_is_a_column_of_its_json(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.parquet", [WRITTEN[0]])
    (record,) = PARQUET.read_table(file).to_pylist()
    assert record["messages"] == msgspec.json.encode(CHAT).decode()
    assert record["calls"] == (
        '[{"turn_id":"turn","prompt_token_ids":[1,2],"output_token_ids":[3],"behavior_logprobs":[-0.5],"temperature":1.0,'
        '"policy_version":3,"policy_digest":"d","constraint":null,"trainable":true,"reason":null}]'
    )


def test_the_json_of_a_row_has_every_column(tmp_path: Path) -> None:
    row = pair_row()
    assert list(msgspec.json.decode(msgspec.json.encode(row))) == arrow_schema(PairRow).names


def test_columns_of_a_later_version_are_ignored_and_nullable_ones_optional(tmp_path: Path) -> None:
    row = pair_row(7)
    record = PARQUET.read_table(write_rows(tmp_path / "old.parquet", [row])).to_pylist()[0]
    later = {name: value for name, value in record.items() if value is not None} | {"added_in_0_3": 1}
    PARQUET.write_table(ARROW.Table.from_pylist([later]), tmp_path / "new.parquet")
    assert list(read_rows(tmp_path / "new.parquet", PairRow)) == [row]


@pytest.mark.parametrize("kind", [PairRow, LabelRow])
def test_a_file_of_other_rows_is_refused(kind: type[Row], tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.parquet", [trajectory_row()])
    with pytest.raises(Rejected, match=f"no {kind.__name__}s can be read"):
        list(read_rows(file, kind))


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(Rejected, match="no LabelRows can be read"):
        list(read_rows(tmp_path / "rows.parquet", LabelRow))


class SlowTable:
    """A Parquet writer whose one write lasts until it may end; it notes what happens in which order."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.order: list[str] = []

    def write_table(self, _: pa.Table) -> None:
        self.begun.set()
        self.may_end.wait(30)
        self.order.append("written")

    def close(self) -> None:
        self.order.append("closed")


def test_closing_waits_for_a_thread_that_writes(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path / "rows.parquet", type(trajectory_row()))
    writer.close()
    table = SlowTable()
    writer._writer = table  # pyright: ignore[reportPrivateUsage]
    writing = threading.Thread(target=writer.add, args=([trajectory_row()],))
    closing = threading.Thread(target=writer.close)
    writing.start()
    assert table.begun.wait(30)
    closing.start()
    closing.join(0.2)
    table.may_end.set()
    writing.join(30)
    closing.join(30)

    assert table.order == ["written", "closed"]


def test_a_text_cannot_add_members_to_its_row(tmp_path: Path) -> None:
    record = PARQUET.read_table(write_rows(tmp_path / "rows.parquet", [label_row(label=False)])).to_pylist()[0]
    forged = ARROW.Table.from_pylist([{**record, "tools": '[],"label":true'}], schema=arrow_schema(LabelRow))
    PARQUET.write_table(forged, tmp_path / "forged.parquet")
    with pytest.raises(Rejected):
        list(read_rows(tmp_path / "forged.parquet", LabelRow))


def test_reading_rows_imports_no_store() -> None:
    check = (
        "import sys, ratchet.core.datasets.parquet\n"
        "print([name for name in ('clickhouse_connect', 'boto3', 'nats', 'httpx', 'pydantic') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
