"""Importing Langfuse's exports: rows of a trace put together, scores as labels and outcome, agents apart."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.core.rules.chat import chat_messages
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.langfuse import LANGFUSE
from tests.support.imports import imported, write_lines

ASKED = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is order 7?"}]
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"order":7}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "on its way"}
ANSWER = {"role": "assistant", "content": "It is on its way."}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def row(number: int, asked: object, answer: object, **changes: Any) -> dict[str, Any]:
    """A row of `observations_v2/`."""
    plain = {
        "id": f"o{number}",
        "trace_id": "t1",
        "project_id": "p",
        "type": "GENERATION",
        "parent_observation_id": "",
        "start_time": f"2026-03-01 10:00:0{number}.000000",
        "end_time": f"2026-03-01 10:00:0{number}.500000",
        "name": "chat",
        "level": "DEFAULT",
        "input": json.dumps(asked),
        "output": json.dumps(answer),
        "provided_model_name": "gpt-4o",
        "usage_details": {"input": 10, "output": 2, "total": 12},
        "total_cost": 0.01,
        "session_id": "s1",
        "trace_name": "support-agent",
        "tags": ["vip"],
        "tool_definitions": {},
        "updated_at": "2026-03-01 11:00:00.000000",
    }
    return plain | changes


def score(name: str, value: float, **changes: Any) -> dict[str, Any]:
    """A row of `scores/`."""
    plain = {
        "id": f"score-{name}",
        "timestamp": "2026-03-02 10:00:00.000000",
        "trace_id": "t1",
        "observation_id": None,
        "name": name,
        "value": value,
        "source": "ANNOTATION",
        "data_type": "NUMERIC",
        "string_value": None,
        "comment": None,
    }
    return plain | changes


FIRST = row(1, {"messages": ASKED, "tools": [TOOL]}, CALLED)
SECOND = row(3, {"messages": [*ASKED, CALLED, RESULT], "tools": [TOOL]}, ANSWER)
TOOL_SPAN = row(2, "", "", type="TOOL", input='{"order": 7}', output="on its way", provided_model_name="")


def test_the_calls_of_a_trace_are_one_trajectory_wherever_its_rows_stand(tmp_path: Path) -> None:
    other = row(4, ASKED, ANSWER, trace_id="t2", id="o9")
    write_lines(tmp_path / "x" / "observations_v2" / "b.jsonl", SECOND, other, TOOL_SPAN)
    write_lines(tmp_path / "x" / "observations_v2" / "c.jsonl", FIRST)
    write_lines(tmp_path / "x" / "scores" / "a.jsonl", score("correct", 1.0), score("stray", 0.0, trace_id=None))

    bus, report = imported(LANGFUSE, tmp_path / "x", ImportOptions(role="support", outcome="correct"))

    assert (report.records, report.published, report.undated, report.malformed) == (6, 2, 0, [])
    one = next(each for each in bus.trajectories if (each.labels or {})["trace_id"] == "t1")
    chat = chat_messages(one)
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat[2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"order":7}'}
    assert [turn.timestamp for turn in one.turns] == [datetime(2026, 3, 1, 10, 0, at, tzinfo=UTC) for at in (1, 3)]
    assert one.end_timestamp == datetime(2026, 3, 1, 10, 0, 3, 500_000, tzinfo=UTC)
    assert (one.session_id, one.agent_id) == ("langfuse/s1", "support-agent")
    assert (one.metadata.model, one.metadata.total_tokens, one.metadata.total_cost_usd) == ("gpt-4o", 24, 0.02)
    assert (one.metadata.source, one.task_context.tools) == ("import:langfuse", [TOOL])
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.verified_by) == ("success", "correct")
    assert (one.labels or {})["tags"] == ["vip"]


def test_parquet_and_the_apis_traces_give_the_same_conversation(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    rows = [{**one, "tool_definitions": None, "tags": ["vip"]} for one in (FIRST, SECOND)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x" / "a.parquet")
    names = {"trace_id": "traceId", "start_time": "startTime", "end_time": "endTime", "provided_model_name": "model"}
    observations = [
        {**{names.get(name, name): value for name, value in one.items()}, "input": json.loads(one["input"])}
        for one in (FIRST, SECOND)
    ]
    trace = {"id": "t1", "timestamp": "2026-03-01T10:00:00Z", "name": "support-agent", "sessionId": "s1"}
    whole = {**trace, "observations": observations, "scores": [{"id": "s", "name": "correct", "value": 0.25}]}
    path = write_lines(tmp_path / "b.json", {"data": [whole], "meta": {"page": 1}})

    table, _ = imported(LANGFUSE, tmp_path / "x")
    api, _ = imported(LANGFUSE, path)

    assert table.trajectories[0].trajectory_id == api.trajectories[0].trajectory_id
    assert chat_messages(table.trajectories[0]) == chat_messages(api.trajectories[0])
    assert api.trajectories[0].session_id == "langfuse/s1"
    assert (api.trajectories[0].labels or {})["scores"] == {"correct": 0.25}


def test_row_that_was_exported_again_counts_once_and_the_newer_one_counts(tmp_path: Path) -> None:
    newer = row(1, ASKED, {"role": "assistant", "content": "new"}, updated_at="2026-03-01 12:00:00.000000")
    older = row(1, ASKED, {"role": "assistant", "content": "old"})
    for name, rows in (("a", [newer, older]), ("b", [older, newer])):
        bus, report = imported(LANGFUSE, write_lines(tmp_path / f"{name}.jsonl", *rows))
        assert [turn.action.raw_response for turn in bus.trajectories[0].turns] == ["new"]
        assert (report.records, report.published) == (2, 1)


def test_worker_of_a_trace_is_a_trajectory_of_its_own_that_names_the_first(tmp_path: Path) -> None:
    worker = [{"role": "system", "content": "You summarise."}, {"role": "user", "content": "Sum up."}]
    path = write_lines(
        tmp_path / "a.jsonl", FIRST, row(2, worker, {"role": "assistant", "content": "Short."}), SECOND, score("ok", 1)
    )
    bus, _ = imported(LANGFUSE, path)

    main, side = bus.trajectories
    assert side.parent_trajectory_id == main.trajectory_id
    assert side.task_context.instructions == "You summarise."
    assert ((main.labels or {})["scores"], "scores" in (side.labels or {})) == ({"ok": 1.0}, False)


@pytest.mark.parametrize("ids", [(7, 9), (None, None)])
def test_calls_whose_ids_are_numbers_or_missing_are_all_kept(
    tmp_path: Path, ids: tuple[int | None, int | None]
) -> None:
    calls = [
        row(1, ASKED, CALLED, id=ids[0]),
        row(1, [{"role": "user", "content": "Find it."}], {"role": "assistant", "content": "Yes."}, id=ids[1]),
    ]
    bus, _ = imported(LANGFUSE, write_lines(tmp_path / "a.jsonl", *calls))
    other, _ = imported(LANGFUSE, write_lines(tmp_path / "b.jsonl", *reversed(calls)))

    assert len(bus.trajectories) == 2
    assert bus.bodies == other.bodies


def test_words_of_judges_are_labels_and_numbers_that_are_no_outcome_too(tmp_path: Path) -> None:
    mood = score("mood", 0, data_type="CATEGORICAL", string_value="angry", comment="call mia@example.com")
    bus, report = imported(LANGFUSE, write_lines(tmp_path / "a.jsonl", FIRST, mood, score("helpful", 4)))

    labels = bus.trajectories[0].labels or {}
    assert labels["scores"] == {"helpful": 4.0}
    assert labels["judged"]["mood"] == {
        "string_value": "angry",
        "comment": "call [REDACTED:email]",
        "source": "ANNOTATION",
    }
    assert report.redactions == {"email": 1}
    assert bus.trajectories[0].outcome is None


def test_call_without_an_answer_is_left_aside_and_a_trace_of_none_is_named(tmp_path: Path) -> None:
    failed = row(5, ASKED, "", output="", level="ERROR", status_message="timeout")
    bus, _ = imported(LANGFUSE, write_lines(tmp_path / "a.jsonl", FIRST, failed))
    assert bus.trajectories[0].metadata.error == "timeout"
    assert len(bus.trajectories[0].turns) == 1

    bus, report = imported(
        LANGFUSE, write_lines(tmp_path / "b.jsonl", failed, {"a": 1}, 7, {**TOOL_SPAN, "trace_id": "t3"})
    )
    assert [(one.where, one.reason) for one in report.malformed] == [
        ("line 1", "holds no model call with a prompt and an answer"),
        ("line 2", "is neither an observation, nor a score, nor a trace"),
        ("line 3", "is not an object"),
        ("line 4", "is a trace without a GENERATION"),
    ]
    assert bus.messages == []
