"""Imports OpenAI's chat format: fine-tuning files, preference files, and requests with their answers.

Read as OpenAI's API reference describes it (version 2.3.0 of its OpenAPI document), one JSON object a line:

- `{"messages": [...], "tools", "functions", "parallel_tool_calls", "metadata"}`: a fine-tuning example, one trajectory;
- `{"input": {"messages", "tools"}, "preferred_output": [...], "non_preferred_output": [...]}`: a preference;
- `{"request": {...}, "response": {...}}`, each whole or as its `body`: a stored completion with its request; each of
  its choices is a trajectory, and its `created` is the time.

`weight` is taken off the messages. An example with an answer of weight 0, which is not to be learnt, is refused: a
trajectory cannot say so, and every answer of it would be trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ratchet.core.contract import JsonObject
from ratchet.dialects.foreign_values import count_of, instant_of, number_of, object_of, objects_of, text_or_none
from ratchet.extras.importers.base import (
    Imported,
    ImportedPreference,
    ImportedTrajectory,
    Importer,
    ImportOptions,
    MalformedRecord,
)
from ratchet.extras.importers.building import chat_of, fields_of, preference_from, trajectory_from

SOURCE = "openai-chat"
PAIRS = frozenset({"prompt", "chosen", "rejected"})


def messages_of(record: object, options: ImportOptions) -> Iterator[Imported]:
    """The trajectories or the preference of a record. Raises a `ValueError` or `Rejected`."""
    fields = fields_of(record)
    if "preferred_output" in fields or "non_preferred_output" in fields:
        yield preference_from(_pair(fields), options, SOURCE)
    elif "messages" in fields:
        yield trajectory_from(_example(fields, options), options, SOURCE)
    elif "request" in fields and "response" in fields:
        for answered in _answered(fields, options):
            yield trajectory_from(answered, options, SOURCE)
    elif fields.keys() >= PAIRS:
        raise MalformedRecord("this looks like pairs: `ratchet import hugging-face` reads them")
    else:
        raise MalformedRecord("has neither messages, nor preferred_output, nor request and response")


def _example(fields: JsonObject, options: ImportOptions) -> ImportedTrajectory:
    chat = chat_of(fields["messages"])
    unweighted = sum(message.get("role") == "assistant" and message.get("weight") == 0 for message in chat)
    if unweighted:
        answers = "1 answer" if unweighted == 1 else f"{unweighted} answers"
        raise MalformedRecord(f"gives {answers} the weight 0, and every answer of a trajectory is trained on")
    metadata = object_of(fields.get("metadata"))
    labels: JsonObject = {"metadata": metadata} if metadata else {}
    if isinstance(fields.get("parallel_tool_calls"), bool):
        labels["parallel_tool_calls"] = fields["parallel_tool_calls"]
    return ImportedTrajectory(
        messages=[{name: value for name, value in message.items() if name != "weight"} for message in chat],
        tools=_tools(fields),
        scores=_scores(metadata, options),
        labels=labels,
    )


def _pair(fields: JsonObject) -> ImportedPreference:
    given = object_of(fields.get("input"))
    return ImportedPreference(
        prompt=chat_of(given.get("messages"), "input.messages"),
        chosen=chat_of(fields.get("preferred_output"), "preferred_output"),
        rejected=chat_of(fields.get("non_preferred_output"), "non_preferred_output"),
        tools=_tools(given),
    )


def _answered(fields: JsonObject, options: ImportOptions) -> Iterator[ImportedTrajectory]:
    request, response = _body(fields["request"]), _body(fields["response"])
    prompt = chat_of(request.get("messages"), "request.messages")
    choices = objects_of(response.get("choices"))
    if not choices:
        raise MalformedRecord("response has no choices")
    metadata = {**object_of(request.get("metadata")), **object_of(response.get("metadata"))}
    created, own_id = instant_of(response.get("created")), text_or_none(response.get("id"))
    for place, choice in enumerate(choices):
        answer = object_of(choice.get("message"))
        yield ImportedTrajectory(
            id=f"{own_id}/{place}" if own_id and place else own_id,
            messages=[*prompt, {**answer, "role": "assistant"}],
            model=text_or_none(response.get("model")) or text_or_none(request.get("model")),
            started_at=created,
            tools=_tools(request),
            tokens=count_of(object_of(response.get("usage")).get("total_tokens")),
            scores=_scores(metadata, options),
            labels={"metadata": metadata} if metadata else {},
        )


def _body(value: object) -> JsonObject:
    fields = object_of(value)
    return object_of(fields["body"]) if isinstance(fields.get("body"), dict) else fields


def _tools(fields: JsonObject) -> list[JsonObject]:
    """The tools, also in the older form of `functions`."""
    functions = [{"type": "function", "function": function} for function in objects_of(fields.get("functions"))]
    return [*objects_of(fields.get("tools")), *functions]


def _scores(metadata: JsonObject, options: ImportOptions) -> dict[str, float]:
    """The outcome, where the metadata has it; values of stored completions are texts."""
    value: object = metadata.get(options.outcome or "")
    with suppress(ValueError):
        number = number_of(float(value) if isinstance(value, str) else value)
        return {} if options.outcome is None or number is None else {options.outcome: number}
    return {}


OPENAI_CHAT = Importer(
    summary="OpenAI chat files: fine-tuning examples, preferences, stored completions", messages_of=messages_of
)
