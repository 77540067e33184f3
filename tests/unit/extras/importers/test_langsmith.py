"""Importing LangSmith's runs: LangChain's messages, nested runs, feedback, traces without model calls."""

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
from ratchet.extras.importers.langsmith import LANGSMITH
from tests.support.imports import imported, write_lines


def lc(kind: str, content: object, **more: Any) -> dict[str, Any]:
    """A message as LangChain serialises it."""
    path = ["langchain", "schema", "messages", kind]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": {"content": content, **more}}


CALL = {"name": "find", "args": {"order": 7}, "id": "c1", "type": "tool_call"}
ASKED = [lc("SystemMessage", "Help."), lc("HumanMessage", "Where is order 7?")]
CALLED = lc("AIMessage", "", tool_calls=[CALL])
RESULT = lc("ToolMessage", "on its way", tool_call_id="c1", name="find")
ANSWER = lc("AIMessage", "It is on its way.")


def run(number: int, **changes: Any) -> dict[str, Any]:
    plain = {
        "id": f"r{number}",
        "trace_id": "r0",
        "parent_run_id": None if number == 0 else "r0",
        "session_id": "project",
        "name": "agent" if number == 0 else "ChatOpenAI",
        "run_type": "chain" if number == 0 else "llm",
        "start_time": f"2026-03-01T10:00:0{number}.000000",
        "end_time": f"2026-03-01T10:00:0{number}.500000+00:00",
        "error": None,
        "extra": {"metadata": {"thread_id": "th1", "ls_model_name": "gpt-4o"}, "invocation_params": {}},
        "inputs": {},
        "outputs": None,
        "feedback_stats": None,
        "tags": ["prod"],
        "total_tokens": 10,
        "total_cost": "0.005",
    }
    return plain | changes


def llm(number: int, asked: list[Any], answer: object, **changes: Any) -> dict[str, Any]:
    outputs = {"generations": [[{"text": "", "type": "ChatGeneration", "message": answer}]], "llm_output": None}
    return run(number, inputs={"messages": [asked]}, outputs=outputs, **changes)


ROOT = run(0, feedback_stats={"correct": {"n": 2, "avg": 0.5}, "user_score": {"n": 1, "avg": 1}})
FIRST = llm(1, ASKED, CALLED)
SECOND = llm(3, [*ASKED, CALLED, RESULT], ANSWER)
TOOL = run(2, run_type="tool", inputs={"input": "7"}, outputs={"output": "on its way"})


def test_runs_of_a_trace_are_one_trajectory(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", SECOND, TOOL, ROOT, FIRST)
    bus, report = imported(LANGSMITH, path, ImportOptions(outcome="correct"))

    (one,) = bus.trajectories
    assert (report.records, report.published, report.malformed) == (4, 1, [])
    chat = chat_messages(one)
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool", "assistant"]
    assert chat[2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"order":7}'}
    assert chat[3]["content"] == "on its way"
    assert one.start_timestamp == datetime(2026, 3, 1, 10, 0, 1, tzinfo=UTC)
    assert (one.session_id, one.agent_id, one.metadata.model) == ("langsmith/th1", "agent", "gpt-4o")
    assert (one.metadata.total_tokens, one.metadata.total_cost_usd) == (20, 0.01)
    assert one.outcome is not None
    assert (one.outcome.status, one.outcome.score) == ("partial", 0.5)
    assert (one.labels or {})["scores"] == {"correct": 0.5, "user_score": 1.0}


def test_nested_runs_and_a_bulk_exports_parquet_give_the_same(tmp_path: Path) -> None:
    nested = write_lines(tmp_path / "a.jsonl", {**ROOT, "child_runs": [FIRST, {**TOOL, "child_runs": [SECOND]}]})
    texts = ("inputs", "outputs", "extra", "feedback_stats")
    rows = [{**one, **{name: json.dumps(one[name]) for name in texts}} for one in (ROOT, FIRST, TOOL, SECOND)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")

    first, _ = imported(LANGSMITH, nested)
    second, _ = imported(LANGSMITH, tmp_path / "b.parquet")

    assert len(first.bodies) == 1
    assert first.bodies == second.bodies


def test_openai_calls_that_were_wrapped_are_read(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "hi"}]
    answer = {"choices": [{"message": {"role": "assistant", "content": "Hello."}}], "model": "gpt-4o"}
    tools = [{"type": "function", "function": {"name": "find"}}]
    wrapped = run(1, parent_run_id=None, trace_id="r1", inputs={"messages": asked, "tools": tools}, outputs=answer)
    bus, _ = imported(LANGSMITH, write_lines(tmp_path / "a.jsonl", wrapped))

    assert [message["content"] for message in chat_messages(bus.trajectories[0])] == ["hi", "Hello."]
    assert bus.trajectories[0].task_context.tools == tools


def test_a_trace_without_model_calls_is_read_by_its_first_run(tmp_path: Path) -> None:
    asked = [{"type": "human", "content": "hi"}]
    whole = run(0, inputs={"messages": asked}, outputs={"messages": [*asked, {"type": "ai", "content": "Hello."}]})
    short = run(0, id="r9", trace_id="r9", inputs={"input": "hi"}, outputs={"output": "Hello."})
    bus, _ = imported(LANGSMITH, write_lines(tmp_path / "a.jsonl", whole, short))

    for one in bus.trajectories:
        assert [message["content"] for message in chat_messages(one)] == ["hi", "Hello."]
    assert len(bus.trajectories) == 2


def test_runs_that_name_each_other_as_parents_are_read_all_the_same(tmp_path: Path) -> None:
    first, second = {**FIRST, "parent_run_id": "r3"}, {**SECOND, "parent_run_id": "r1"}
    bus, _ = imported(LANGSMITH, write_lines(tmp_path / "a.jsonl", first, second, second))
    assert [len(one.turns) for one in bus.trajectories] == [2]


@pytest.mark.parametrize("ids", [(7, 9), (None, None)])
def test_calls_whose_ids_are_numbers_or_missing_are_all_kept(
    tmp_path: Path, ids: tuple[int | None, int | None]
) -> None:
    calls = [llm(1, ASKED, CALLED, id=ids[0]), llm(3, [*ASKED, CALLED, RESULT], ANSWER, id=ids[1])]
    bus, _ = imported(LANGSMITH, write_lines(tmp_path / "a.jsonl", ROOT, *calls))
    (one,) = bus.trajectories
    assert [message["role"] for message in chat_messages(one)][2:] == ["assistant", "tool", "assistant"]


def test_what_is_no_run_and_a_trace_without_messages_are_named(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "a.jsonl", {"a": 1}, run(1, trace_id="t", outputs={}), "x", {"id": "r", "run_type": 1}
    )
    bus, report = imported(LANGSMITH, path)
    assert bus.trajectories == []
    assert [one.where for one in report.malformed] == ["line 1", "line 2", "line 3", "line 4"]
    assert "trace_id" in report.malformed[0].reason
    assert "its first run has no messages" in report.malformed[1].reason
