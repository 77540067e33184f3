"""OpenAI's evals, and its data for reinforcement fine-tuning, as tasks for `ratchet eval` and the held-out gate.

Read as OpenAI's API reference describes them, in any number of files, as objects, lists or JSON lines:

- an eval, `{"testing_criteria": [...], "data_source_config", "name"}`, or a grader, or a fine-tuning job that has one;
- runs of it, `{"data_source": {"input_messages", "source", "sampling_params"}}`: the newest one's prompt is used;
- records: `{"item": {...}}`, a run's output items (`datasource_item`, `sample`), or fine-tuning examples (`messages`).

A conversation is what a run asked (`sample.input`), else the run's prompt filled with the record, else its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.contract.evaluation_task import Expected, Task
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders import build_grader
from ratchet.core.rules.redaction import redact_message
from ratchet.dialects.foreign_values import count_of, number_of, object_of, objects_of, text_or_none
from ratchet.extras.importers.base import MalformedRecord
from ratchet.extras.importers.building import chat_of, digest_of
from ratchet.extras.importers.openai_graders import GRADERS, NoCounterpart, expected_of, filled, joined, value_at
from ratchet.extras.importers.reading import Record, Unreadable

_KEPT = ("tool_calls", "tool_call_id", "name")
"""Members of a message that a task keeps beside role and content."""
_NOT_ALNUM = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass
class Converted:
    """What an export became, beside what has no counterpart."""

    left_out: Counter[str] = field(default_factory=Counter[str])
    """How often, by what it is."""
    redactions: Counter[str] = field(default_factory=Counter[str])
    """Secrets that were taken out, by kind."""


@dataclass
class Tasks(Converted):
    """Tasks with their graders."""

    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    """By id."""


def tasks_of(records: Iterable[Record]) -> Tasks:
    """The tasks of one eval. Raises `Rejected` where the files hold none, or several."""
    made = Tasks()
    export = _Export()
    for record in records:
        if isinstance(record.value, Unreadable) or not isinstance(record.value, dict):
            made.left_out["records that are no JSON objects"] += 1
        else:
            export.add(cast("JsonObject", record.value))
    if len(export.evals) != 1:
        counted = f"{len(export.evals)} evals: import one at a time" if export.evals else "no eval and no grader"
        raise Rejected(f"the files hold {counted}")
    prompt = export.prompt(made.left_out)
    for fields in export.records:
        try:
            _add_task(made, export.evals[0], prompt, fields)
        except (ValueError, Rejected) as error:
            made.left_out[f"a record: {error}"] += 1
    return made


@dataclass
class _Export:
    """The objects of an export, by kind."""

    evals: list[JsonObject] = field(default_factory=list[JsonObject])
    """With `testing_criteria`; a grader by itself is an eval of one."""
    runs: list[JsonObject] = field(default_factory=list[JsonObject])
    records: list[JsonObject] = field(default_factory=list[JsonObject])

    def add(self, fields: JsonObject) -> None:
        job = object_of(object_of(object_of(fields.get("method")).get("reinforcement")).get("grader"))
        grader = job or (fields if fields.get("type") in GRADERS else {})
        if "testing_criteria" in fields:
            self.evals.append(fields)
        elif grader:
            self.evals.append({"name": grader.get("name"), "testing_criteria": [grader]})
        elif "data_source" in fields:
            self.runs.append(fields)
            self.records += objects_of(object_of(object_of(fields["data_source"]).get("source")).get("content"))
        else:
            self.records.append(fields)

    def prompt(self, left_out: Counter[str]) -> JsonObject:
        """What the newest run asks, its `data_source`; empty without runs."""
        asking = [run for run in self.runs if object_of(object_of(run["data_source"]).get("input_messages"))]
        asking.sort(key=lambda run: number_of(run.get("created_at")) or 0.0)
        if len(asking) > 1:
            left_out["the prompts of older runs"] += len(asking) - 1
        source = object_of(asking[-1]["data_source"]) if asking else {}
        kept = ("tools", "seed", "max_completion_tokens", "max_completions_tokens", "max_output_tokens")
        for name in object_of(source.get("sampling_params")).keys() - {*kept}:
            left_out[f"sampling value `{name}` of the run"] += 1
        return source


def _add_task(made: Tasks, evaluation: JsonObject, prompt: JsonObject, fields: JsonObject) -> None:
    """Raises a `ValueError` or `Rejected` for a record that is no task."""
    item = object_of(fields.get("item")) or object_of(fields.get("datasource_item")) or fields
    item = object_of(item.get("item")) or item
    messages = _conversation(prompt, item, object_of(fields.get("sample")))
    expected = Expected()
    for grader in objects_of(evaluation.get("testing_criteria")):
        try:
            expected = joined(expected, expected_of(grader, item))
        except NoCounterpart as error:
            made.left_out[str(error)] += 1
    if expected == Expected():
        raise MalformedRecord("no grader of it has a counterpart")
    given = object_of(prompt.get("sampling_params"))
    limits = (given.get(name) for name in ("max_completion_tokens", "max_completions_tokens", "max_output_tokens"))
    task = Task(
        id="unnamed",
        messages=messages,
        expect=expected,
        tools=[_tool(tool) for tool in objects_of(item.get("tools")) or objects_of(given.get("tools"))],
        max_tokens=next((count for limit in limits if (count := count_of(limit))), None),
        seed=count_of(given.get("seed")) or 0,
    )
    build_grader(task.expect)
    task, counts = redact_message(task)
    name = (
        _NOT_ALNUM.sub("-", text_or_none(evaluation.get("name")) or "openai-evals").strip("-")[:100] or "openai-evals"
    )
    task = msgspec.structs.replace(task, id=f"{name}/{digest_of(msgspec.to_builtins(task))[:12]}")
    if task.id in made.tasks:
        raise MalformedRecord("repeats another one")
    made.tasks[task.id] = task
    made.redactions.update(counts)


def _conversation(prompt: JsonObject, item: JsonObject, sample: JsonObject) -> list[JsonObject]:
    """What the policy is asked. Raises `MalformedRecord` where nothing says it."""
    asked, template = sample.get("input"), object_of(prompt.get("input_messages"))
    if isinstance(asked, list) and asked:
        messages = chat_of(cast("object", asked), "sample.input")
    elif template.get("type") == "item_reference":
        messages = chat_of(value_at(str(template.get("item_reference")), item), "the run's item_reference")
    elif template:
        shown = chat_of(template.get("template"), "the run's template")
        messages = [{**message, "content": filled(message_text(message), item)} for message in shown]
    else:
        own = item.get("messages", item.get("input"))
        if not isinstance(own, list):
            raise MalformedRecord("no run says what is asked, and it has no messages of its own")
        messages = chat_of(cast("object", own))
    chat = [_message(message) for message in messages]
    if chat[-1]["role"] == "assistant":
        raise MalformedRecord("its conversation ends with an answer, as examples for fine-tuning do")
    return chat


def _message(message: JsonObject) -> JsonObject:
    role = message.get("role")
    kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
    return {"role": "system" if role == "developer" else role, "content": message_text(message), **kept}


def message_text(message: JsonObject) -> str:
    """The text of a message in the form of either API. Raises `MalformedRecord` for anything but text."""
    content = message.get("content")
    parts: list[object] = cast("list[object]", content) if isinstance(content, list) else [content]
    return "".join(_part(part) for part in parts if part is not None)


def _part(part: object) -> str:
    text = object_of(part).get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise MalformedRecord(f"a message holds a {object_of(part).get('type') or type(part).__name__}")
    return text


def _tool(tool: JsonObject) -> JsonObject:
    """A tool in the form of chat completions."""
    if "function" in tool or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
