"""Importing OpenAI's chat files: fine-tuning examples, preferences, stored completions."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.rules.chat import chat_messages
from ratchet.extras.importers.base import UNKNOWN_TIME, ImportOptions
from ratchet.extras.importers.openai_chat import OPENAI_CHAT
from tests.support.imports import imported, write_lines

TOOL = {"type": "function", "function": {"name": "find_order", "parameters": {"type": "object", "properties": {}}}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You help with orders."},
    {"role": "user", "content": "Where is my order? I am mia@example.com"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a1", "type": "function", "function": {"name": "find_order", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "a1", "content": "on its way"},
    {"role": "assistant", "content": "It is on its way."},
]


def example(**changes: Any) -> dict[str, Any]:
    return {"messages": copy.deepcopy(CHAT), "tools": [TOOL], "parallel_tool_calls": False} | changes


def test_an_example_becomes_a_trajectory_with_its_tools(tmp_path: Path) -> None:
    options = ImportOptions(role="support", model="gpt-4o", domain="retail")
    bus, report = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", example()), options)

    (trajectory,) = bus.trajectories
    assert (report.records, report.published, report.undated, report.malformed) == (1, 1, 1, [])
    assert (trajectory.role, trajectory.metadata.model, trajectory.metadata.source) == (
        "support",
        "gpt-4o",
        "import:openai-chat",
    )
    assert trajectory.task_context.instructions == "You help with orders."
    assert trajectory.task_context.tools == [TOOL]
    assert (trajectory.task_context.domain, trajectory.start_timestamp) == ("retail", UNKNOWN_TIME)
    assert trajectory.labels == {"parallel_tool_calls": False, "redactions": {"email": 1}}
    assert trajectory.outcome is None
    assert trajectory.policy is None
    assert [message["content"] for message in chat_messages(trajectory)] == [
        "You help with orders.",
        "Where is my order? I am [REDACTED:email]",
        None,
        "on its way",
        "It is on its way.",
    ]
    assert report.redactions == {"email": 1}


def test_a_second_import_publishes_the_same_bytes_also_from_another_file(tmp_path: Path) -> None:
    other = example(messages=[*CHAT[:2], {"role": "assistant", "content": "Gone."}])
    first, _ = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", example(), other))
    second, report = imported(OPENAI_CHAT, write_lines(tmp_path / "b.jsonl", other, "{broken", example(), other))

    assert first.bodies == second.bodies
    assert (report.repeated, [(one.index, one.where) for one in report.malformed]) == (1, [(1, "line 2")])


def test_equal_prompts_are_one_task_and_other_prompts_another(tmp_path: Path) -> None:
    again = example(messages=[*CHAT[:2], {"role": "assistant", "content": "Gone."}])
    other = example(messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}])
    bus, _ = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", example(), again, other))

    tasks = [one.task_context.task_id for one in bus.trajectories]
    assert tasks[0] == tasks[1] != tasks[2]


def test_weights_are_no_part_of_the_chat(tmp_path: Path) -> None:
    weighted = [{**message, "weight": 1} if index == 2 else message for index, message in enumerate(CHAT)]
    bus, _ = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", {"messages": weighted}))

    assert "weight" not in str(chat_messages(bus.trajectories[0]))


def test_an_answer_that_must_not_be_learnt_keeps_its_example_out(tmp_path: Path) -> None:
    weighted = [{**message, "weight": 0} if index == 2 else message for index, message in enumerate(CHAT)]
    bus, report = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", {"messages": weighted}, example()))

    assert len(bus.messages) == 1
    assert [(one.where, one.reason[:30]) for one in report.malformed] == [("line 1", "gives 1 answer the weight 0, a")]


def test_metadata_names_the_outcome_where_the_command_does(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", example(metadata={"solved": "0.5", "customer": "17"}))

    plain, _ = imported(OPENAI_CHAT, path)
    named, _ = imported(OPENAI_CHAT, path, ImportOptions(outcome="solved"))

    assert plain.trajectories[0].outcome is None
    assert plain.trajectories[0].trajectory_id == named.trajectories[0].trajectory_id
    outcome = named.trajectories[0].outcome
    assert outcome is not None
    assert (outcome.status, outcome.score, outcome.verified_by) == ("partial", 0.5, "solved")
    assert (named.trajectories[0].labels or {})["metadata"] == {"solved": "0.5", "customer": "17"}


def test_a_preference_is_the_teachers_unless_the_command_names_people(tmp_path: Path) -> None:
    pair = {
        "input": {"messages": CHAT[:2], "tools": [TOOL]},
        "preferred_output": [{"role": "assistant", "content": "On its way."}],
        "non_preferred_output": [{"role": "assistant", "content": "Who knows."}],
    }
    path = write_lines(tmp_path / "a.jsonl", pair, pair)

    bus, report = imported(OPENAI_CHAT, path)
    human, _ = imported(OPENAI_CHAT, path, ImportOptions(judged_by="human"))

    (preference,) = bus.preferences
    assert (preference.source, preference.rater, preference.tools) == ("teacher", "import:openai-chat", [TOOL])
    assert preference.chosen == pair["preferred_output"]
    assert (report.published, report.preferences, report.repeated) == (1, 1, 1)
    assert human.preferences[0].source == "human"
    assert b"mia@example.com" not in b"".join(bus.bodies)


def bare(body: dict[str, Any]) -> dict[str, Any]:
    return body


def in_a_batch(body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": 200, "body": body}


@pytest.mark.parametrize("shell", [bare, in_a_batch])
def test_a_stored_completion_has_its_time_model_and_tokens(tmp_path: Path, shell: Any) -> None:
    answers = [{"index": place, "message": {"role": "assistant", "content": text}} for place, text in enumerate("ab")]
    response = {"id": "chatcmpl-1", "created": 1_750_000_000, "model": "gpt-4o", "choices": answers}
    record = {"request": shell({"messages": CHAT[:2]}), "response": shell({**response, "usage": {"total_tokens": 12}})}
    bus, _ = imported(OPENAI_CHAT, write_lines(tmp_path / "a.jsonl", record))

    first, second = bus.trajectories
    assert first.start_timestamp == datetime.fromtimestamp(1_750_000_000, UTC)
    assert (first.metadata.model, first.metadata.total_tokens) == ("gpt-4o", 12)
    assert first.trajectory_id != second.trajectory_id
    assert first.task_context.task_id == second.task_context.task_id


MALFORMED = [
    ("7", "is not an object"),
    ({}, "has neither messages"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "this looks like pairs"),
    ({"messages": "hi"}, "messages is not a list of messages"),
    ({"messages": []}, "messages is not a list of messages"),
    ({"messages": ["hi"]}, "message 0 of messages is not an object"),
    ({"messages": CHAT[:2]}, "holds no message of the assistant"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "message 0 has the role 'robot'"),
    ({"messages": [{"role": "assistant", "content": "x", "weight": 0}]}, "gives 1 answer the weight 0"),
    ({"messages": CHAT, "metadata": {"solved": 7}}, "the score solved is 7"),
    ({"preferred_output": []}, "input.messages is not a list"),
    ({"request": {"messages": CHAT[:2]}, "response": {}}, "response has no choices"),
]


def test_malformed_records_are_named_by_their_line_and_rest_is_imported(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", example(), *(record for record, _ in MALFORMED), {"messages": CHAT})
    bus, report = imported(OPENAI_CHAT, path, ImportOptions(outcome="solved"))

    assert (report.records, report.published, len(bus.messages)) == (len(MALFORMED) + 2, 2, 2)
    assert [one.where for one in report.malformed] == [f"line {line}" for line in range(2, len(MALFORMED) + 2)]
    for one, (_, reason) in zip(report.malformed, MALFORMED, strict=True):
        assert reason in one.reason
