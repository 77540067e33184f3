"""Executions as flat records, and the files that exports are written to."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ratchet.bus.message import encode
from ratchet.core.contract import Outcome, Trajectory
from ratchet.core.contract.trajectory import Action, Observation, TrajectoryMetadata, TrajectoryTurn, TurnResult
from ratchet.core.rules.chat import trajectory_turns
from ratchet.extras.exporters import KINDS
from ratchet.extras.exporters.exporting import written
from tests.support.messages import AT, trajectory

CALL = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"id":"K47"}'}}
CHAT = [
    {"role": "system", "content": "Help customers."},
    {"role": "user", "content": "where is it?"},
    {"role": "assistant", "content": "let me look", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "shipped"},
    {"role": "assistant", "content": "It is on its way."},
]


def execution(**changes: object) -> dict:
    return KINDS["executions"].record(encode(trajectory(**changes)), None)


def test_an_execution_holds_request_plan_result_and_cost() -> None:
    _, turns = trajectory_turns(CHAT, started_at=AT)
    run = execution(
        turns=turns,
        end_timestamp=AT + timedelta(milliseconds=1500),
        metadata=TrajectoryMetadata(model="gpt-4o", total_cost_usd=0.02),
    )
    assert (run["timestamp"], run["instruction"], run["request"]) == (AT, "Be helpful.", "where is it?")
    assert (run["success"], run["cost"], run["latency_ms"]) == (True, 0.02, 1500)
    assert run["result"] == "It is on its way."
    assert run["plan"] == [
        {
            "step": 1,
            "thoughts": ["let me look"],
            "action": "tool_call",
            "tool": "lookup",
            "arguments": {"id": "K47"},
            "success": True,
        }
    ]


def test_a_failure_is_an_execution_with_its_error() -> None:
    failed = TrajectoryTurn(
        turn_id=1,
        timestamp=AT,
        observation=Observation(type="user_message", content="go"),
        action=Action(type="subordinate_call", tool_args={"to": "researcher"}),
        result=TurnResult(success=False, error="no such agent"),
    )
    run = execution(turns=[failed], outcome=Outcome(status="failure"))
    assert (run["success"], run["status"], run["error"], run["result"]) == (False, "failure", "no such agent", None)
    assert run["plan"][0]["action"] == "subordinate_call"


@pytest.mark.parametrize(
    ("outcome", "success"), [(None, None), (Outcome(status="partial"), False), (Outcome(status="success"), True)]
)
def test_success_is_unknown_without_a_reported_outcome(outcome: Outcome | None, success: bool | None) -> None:
    assert execution(outcome=outcome)["success"] is success


def test_every_member_of_a_trajectory_is_a_column() -> None:
    assert {*Trajectory.__struct_fields__, "reward"} == set(KINDS["trajectories"].columns)


def test_every_member_of_an_execution_is_a_column() -> None:
    record = KINDS["executions"].record(encode(trajectory()), None)
    assert set(record) <= set(KINDS["executions"].columns)


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_both_formats_hold_the_same(tmp_path: Path, file_format: str) -> None:
    kind, path = KINDS["executions"], tmp_path / f"out.{file_format}"
    with written(path, file_format, kind.columns) as write:
        for number in range(2):
            write([kind.record(encode(trajectory(str(number))), None)])
    if file_format == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        results = [row["result"] for row in rows]
    else:
        rows = pq.read_table(path).to_pylist()
        results = [json.loads(row["result"]) for row in rows]
    assert results == ["It arrives today."] * 2
    assert [row["success"] for row in rows] == [True, True]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_not_finished_leaves_the_old_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old\n")
    with pytest.raises(TypeError), written(path, "jsonl", {}) as write:
        write([{"not JSON": object()}])
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]
