"""Tasks: what a policy is asked at the beginning of each run that a checker found solved, and what it answered. Pure.

A draft of a task file: a person looks at it, and leaves what other right answers share. It takes the tasks that
trainings hold out (`DatasetFilter.held_out`), each prompt once; a prompt whose answers differ is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from msgspec.json import encode as encode_json

from ratchet.bus.message import JsonObject
from ratchet.core.contract import Reward, Trajectory, decode
from ratchet.core.datasets.domain.selection import HELD_OUT, is_held_out
from ratchet.core.rules.chat import ChatError, chat_messages, text_of
from ratchet.core.rules.chat.format import json_object
from ratchet.extras.exporters.base import REWARDED, Kind, Record

SUCCESS = "success"
KEY = "task_key"
"""A member of a record until `settle` has looked at it."""


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
    key = trajectory.task_context.group_key or trajectory.task_context.task_id
    task = {"id": trajectory.trajectory_id, KEY: key, "messages": messages[:place], "expect": expect}
    return {**task, "tools": tools} if tools else task


def settle(records: Sequence[Record]) -> tuple[list[Record], Counter[str]]:
    """One task a prompt, of those that do not train, and how many runs were left out for which reason."""
    left_out: Counter[str] = Counter()
    prompts: dict[bytes, list[Record]] = {}
    for task in records:
        if is_held_out(task[KEY], HELD_OUT):
            asked = encode_json([task["messages"], task.get("tools")], order="sorted")
            prompts.setdefault(asked, []).append({name: part for name, part in task.items() if name != KEY})
        else:
            left_out["of tasks that train"] += 1
    kept: list[Record] = []
    for tasks in prompts.values():
        if len({encode_json(task["expect"], order="sorted") for task in tasks}) > 1:
            left_out["whose prompt has contradicting answers"] += len(tasks)
        else:
            kept.append(tasks[0])
            left_out["that repeat another"] += len(tasks) - 1
    return kept, +left_out


def _expected(answer: JsonObject) -> JsonObject | None:
    """The calls of an answer with their arguments, else its text."""
    calls = cast("list[JsonObject]", answer.get("tool_calls") or [])
    if calls:  # in the form that `chat_messages` gives
        functions = [(call["function"], json_object(call["function"]["arguments"])) for call in calls]
        named = [{"name": f["name"], **({} if given is None else {"arguments": given})} for f, given in functions]
        return {"tool_calls": {"calls": named}}
    text = text_of(answer.get("content"))
    return {"text": {"any_of": [text]}} if text.strip() else None


TASKS = Kind(
    summary="Drafts of tasks for `ratchet eval`: prompts of verified runs that no training takes, and their answers.",
    table="trajectories",
    time="ended_at",
    key="trajectory_id",
    worth=REWARDED,
    rewarded=False,
    record=record,
    settle=settle,
    columns={"id": "text", "messages": "json", "tools": "json", "expect": "json"},
)
