"""Executions as flat records, and the files that exports are written to."""

from __future__ import annotations

import json
import tomllib
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from ratchet.bus.message import encode
from ratchet.core.contract import Outcome, Trajectory
from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy, WeightStep
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    TaskContext,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.datasets.domain.selection import HELD_OUT, is_held_out
from ratchet.core.evaluation.task_files import parse_tasks
from ratchet.core.rules.chat import trajectory_turns
from ratchet.extras.exporters import KINDS
from ratchet.extras.exporters.exporting import written
from ratchet.extras.exporters.tasks import settle
from ratchet.extras.exporters.tensorzero import tensorzero_toml
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


ASKED_CALL = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"id":"K47"}'}}
TOOLS = [{"type": "function", "function": {"name": "lookup"}}]
PROMPT = [{"role": "system", "content": "Help customers."}, {"role": "user", "content": "where is it?"}]
RUN = [
    *PROMPT,
    {"role": "assistant", "content": None, "tool_calls": [ASKED_CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "shipped"},
    {"role": "assistant", "content": "It is on its way."},
]
SOLVED = Outcome(status="success", verified_by="environment")


HELD = next(key for key in map(str, range(99)) if is_held_out(key, HELD_OUT))
TRAINS = next(key for key in map(str, range(99)) if not is_held_out(key, HELD_OUT))


def drafted(chat: list, outcome: Outcome | None = SOLVED, key: str = HELD) -> dict | None:
    instructions, turns = trajectory_turns(chat, started_at=AT)
    context = TaskContext(task_id=key, instructions=instructions, tools=TOOLS)
    return KINDS["tasks"].record(encode(trajectory(turns=turns, task_context=context, outcome=outcome)), None)


def test_a_task_asks_for_the_first_answer_of_a_solved_run() -> None:
    draft = drafted(RUN)
    assert draft is not None
    assert draft["messages"] == PROMPT
    assert draft["expect"] == {"tool_calls": {"calls": [{"name": "lookup", "arguments": {"id": "K47"}}]}}
    assert draft["tools"] == TOOLS


@pytest.mark.parametrize("chat", [RUN, [*PROMPT, RUN[-1]]], ids=["call", "text"])
def test_a_draft_is_a_line_of_a_task_file_that_its_own_answer_solves(chat: list) -> None:
    draft = drafted(chat)
    assert draft is not None
    ((line,), _) = settle([draft])
    (task,) = parse_tasks(msgspec.json.encode(line), "t.jsonl").tasks
    scores: list[float] = []
    for answer in (chat[2], {"role": "assistant", "content": "No."}):
        conversation = task.begin()
        conversation.reply(answer)
        scores.append(conversation.grade().score)
    assert scores == [1, 0]


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Outcome(status="success"),
        Outcome(status="partial", verified_by="human"),
        Outcome(status="failure", verified_by="human"),
    ],
)
def test_a_run_that_was_not_verified_as_solved_is_no_task(outcome: Outcome | None) -> None:
    assert drafted(RUN, outcome) is None


def test_settle_keeps_a_prompt_once_and_reports_what_contradicts_or_trains() -> None:
    other = [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": "Yes."}]
    contradicting = [other[0], {"role": "assistant", "content": "No."}]
    runs = [drafted(chat) for chat in (RUN, RUN, other, contradicting)] + [drafted(RUN, key=TRAINS)]
    kept, left_out = settle([run for run in runs if run is not None])
    assert [task["messages"] for task in kept] == [PROMPT]
    assert left_out == {
        "of tasks that train": 1,
        "whose prompt has contradicting answers": 2,
        "that repeat another": 1,
    }


STABLE, CANARY = (ServedPolicy(version=n, name=f"support@{n}-{str(n) * 8}", digest=str(n) * 64) for n in (3, 4))


def route(weight: float | None) -> Route:
    if weight is None:
        return Route(role="support", stable=STABLE)
    steps = [WeightStep(at=AT, weight=weight), WeightStep(at=AT + timedelta(hours=1), weight=0.9)]
    canary = CanaryRoute(rollout_id="r", policy=CANARY, salt="salt", schedule=steps, lease=7)
    return Route(role="support", stable=STABLE, canary=canary)


@pytest.mark.parametrize(
    ("weight", "candidates"),
    [
        (None, {"support_v3_33333333": 1.0}),
        (0.1, {"support_v3_33333333": 0.9, "support_v4_44444444": 0.1}),
        (1.0, {"support_v4_44444444": 1.0}),
        (0.0, {"support_v3_33333333": 1.0}),
    ],
)
def test_the_weights_in_force_become_shares_of_variants(weight: float | None, candidates: dict[str, float]) -> None:
    text = tensorzero_toml([route(weight)], "http://127.0.0.1:8082", AT + timedelta(minutes=1))
    function = tomllib.loads(text)["functions"]["support"]
    assert function["experimentation"]["candidate_variants"] == pytest.approx(candidates)
    assert function["experimentation"]["fallback_variants"] == ["support_v3_33333333"]
    assert set(candidates) <= set(function["variants"])


def test_a_policy_is_a_model_of_the_engine_under_its_immutable_name() -> None:
    made = tomllib.loads(tensorzero_toml([route(None)], "http://127.0.0.1:8082/", AT))
    provider = made["models"]["support_v3_33333333"]["providers"]["engine"]
    assert (provider["type"], provider["model_name"]) == ("vllm", STABLE.name)
    assert provider["api_base"] == "http://127.0.0.1:8082/v1/"
    assert {name: metric["level"] for name, metric in made["metrics"].items()} == {
        "ratchet_success": "episode",
        "ratchet_rating": "episode",
        "ratchet_reward": "episode",
    }


def test_a_role_that_nothing_serves_is_left_out() -> None:
    assert "functions" not in tomllib.loads(tensorzero_toml([Route(role="new")], "http://127.0.0.1:8082", AT))
