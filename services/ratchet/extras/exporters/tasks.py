"""Tasks: what a policy is asked at the beginning of each run that a checker found solved, and what it answered. Pure.

A draft of a task file: a person looks at it, and leaves what other right answers share.
"""

from __future__ import annotations

from typing import Any, cast

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Reward, Trajectory, decode
from ratchet.core.rules.chat import ChatError, chat_messages, text_of
from ratchet.core.rules.chat.format import json_object
from ratchet.extras.exporters.base import REWARDED, Kind, Record

SUCCESS = "success"


def record(body: bytes, _: Reward | None) -> Record | None:
    """The task of one run; None where no checker found it solved, or where it begins with no prompt or answer."""
    trajectory = decode(body, Trajectory)
    outcome = trajectory.outcome
    if outcome is None or outcome.status != SUCCESS or outcome.verified_by is None:
        return None
    try:
        messages = chat_messages(trajectory)
    except ChatError:
        return None
    place = next((n for n, message in enumerate(messages) if message.get("role") == "assistant"), 0)
    expect = _expected(messages[place]) if place > 0 else None
    if expect is None:
        return None
    tools = trajectory.task_context.tools
    task = {"id": trajectory.trajectory_id, "messages": messages[:place], "expect": expect}
    return {**task, "tools": tools} if tools else task


def _expected(answer: JsonObject) -> JsonObject | None:
    """The calls of an answer with their arguments, else its text."""
    calls = cast("list[JsonObject]", answer.get("tool_calls") or [])
    if calls:
        return {"tool_calls": {"calls": [_call(call["function"]) for call in calls]}}
    text = text_of(answer.get("content"))
    return {"text": {"any_of": [text]}} if text.strip() else None


def _call(function: Any) -> JsonObject:  # `Any`: JSON of a chat, whose form `chat_messages` gives
    arguments = json_object(function["arguments"])
    return {"name": function["name"], **({"arguments": arguments} if arguments is not None else {})}


TASKS = Kind(
    summary="Drafts of tasks for `ratchet eval`: the beginning of each run verified as solved, and its answer.",
    table="trajectories",
    time="ended_at",
    key="trajectory_id",
    worth=REWARDED,
    rewarded=False,
    record=record,
    columns={"id": "text", "messages": "json", "tools": "json", "expect": "json"},
)
