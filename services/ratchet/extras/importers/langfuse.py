"""Imports Langfuse's exports: traces with their model calls and scores.

Read as Langfuse's pages describe them (the export to blob storage with its field reference, and the types of its public
API, both as of 2026), in JSON, JSON lines or Parquet, in either spelling of names (`trace_id`, `traceId`):

- rows of `observations_v2/` or of `observations/`; those of type GENERATION are model calls, others are left aside;
- rows of `scores/`, which belong to the trace of their `trace_id`;
- rows of `traces/`, also whole traces as the API answers them, with `observations` and `scores` inside.

A folder with such files is one export: rows of one trace are put together wherever they stand, and of a row that was
exported twice the newer one counts. A trace's id is the trajectory's: a trace that was imported once stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ratchet.core.contract import JsonObject, Trajectory
from ratchet.dialects.foreign_messages import answer_of, chat_of_prompt, tools_of
from ratchet.dialects.foreign_values import (
    cost_of,
    count_of,
    id_of,
    instant_of,
    list_of,
    number_of,
    object_of,
    objects_of,
    text_or_none,
)
from ratchet.extras.importers.base import Facts, Importer, ImportOptions, MalformedRecord
from ratchet.extras.importers.building import fields_of
from ratchet.extras.importers.calls import LoggedCall, trajectories_of_calls

SOURCE = "langfuse"


def group_of(row: object) -> str | None:
    """The trace that a row is part of. Raises `MalformedRecord` for what is no row of an export."""
    fields = fields_of(row)
    trace = _id(fields, "id") if _kind(fields) == "trace" else _id(fields, "trace_id")
    if trace is None and _kind(fields) != "score":
        raise MalformedRecord("names no trace")
    return trace


def messages_of(rows: object, options: ImportOptions) -> Iterator[Trajectory]:
    """The trajectories of a trace: one for each conversation. Raises a `ValueError` or `Rejected`."""
    every = [fields_of(row) for row in list_of(rows)]
    traces = [row for row in every if _kind(row) == "trace"]
    observations = _newest(
        [*(inner for row in traces for inner in objects_of(row.get("observations"))), *_of_kind(every, "observation")]
    )
    scores = _newest([*(inner for row in traces for inner in objects_of(row.get("scores"))), *_of_kind(every, "score")])
    generations = [row for row in observations if row.get("type") == "GENERATION"]
    if not generations:
        raise MalformedRecord("is a trace without a GENERATION")
    about = traces[-1] if traces else observations[0]
    calls = [call for row in generations if (call := _call(row)) is not None]
    trace = _id(about, "id") if traces else _id(about, "trace_id")
    failed = next((row for row in reversed(generations) if row.get("level") == "ERROR"), None)
    facts = Facts(
        id=trace,
        session=_text(about, "session_id"),
        agent=_text(about, "trace_name") or (_text(about, "name") if traces else None),
        started_at=instant_of(_get(about, "timestamp")) or instant_of(_get(about, "start_time")),
        error=_text(failed, "status_message") if failed is not None else None,
        scores=_scores(scores),
        labels=_labels(about, trace, scores),
    )
    yield from trajectories_of_calls(facts, calls, options, SOURCE)


def _call(row: JsonObject) -> LoggedCall | None:
    """The model call of a generation; None for one without prompt or answer."""
    given, answer = object_of(_get(row, "input")), answer_of(_get(row, "output"))
    prompt = chat_of_prompt(_get(row, "input")) if _get(row, "input") not in (None, "") else []
    if not prompt or answer is None:
        return None
    usage = object_of(_get(row, "usage_details")) or object_of(row.get("usage"))
    cost = (
        _get(row, "total_cost") or row.get("calculatedTotalCost") or object_of(_get(row, "cost_details")).get("total")
    )
    counts = [count for name in ("input", "output") if (count := count_of(usage.get(name))) is not None]
    return LoggedCall(
        id=_id(row, "id"),
        prompt=prompt,
        answer=answer,
        started_at=instant_of(_get(row, "start_time")),
        ended_at=instant_of(_get(row, "end_time")),
        model=_text(row, "provided_model_name") or text_or_none(row.get("model")),
        tools=tools_of(given.get("tools")) or _defined(_get(row, "tool_definitions")),
        tokens=count_of(usage.get("total")) or (sum(counts) if counts else None),
        cost_usd=cost_of(cost),
    )


def _defined(value: object) -> list[JsonObject]:
    """Tools by name, each the JSON text of its schema."""
    tools: list[JsonObject] = []
    for name, text in object_of(value).items():
        schema = object_of(text)
        tools.append(schema if "function" in schema else {"type": "function", "function": {"name": name, **schema}})
    return tools


def _scores(rows: Iterable[JsonObject]) -> dict[str, float]:
    """Numbers and truths by name; a score of the whole trace stands above one of a part of it."""
    scores: dict[str, float] = {}
    for row in sorted(rows, key=lambda row: _text(row, "observation_id") is None):
        name, number = _text(row, "name"), number_of(row.get("value"))
        if name and number is not None and _get(row, "data_type") in (None, "NUMERIC", "BOOLEAN"):
            scores[name] = number
    return scores


def _labels(about: JsonObject, trace: str | None, scores: Sequence[JsonObject]) -> JsonObject:
    judged = {
        str(_text(row, "name")): {
            part: text for part in ("string_value", "comment", "source") if (text := _text(row, part)) is not None
        }
        for row in scores
    }
    labels: JsonObject = {
        "trace_id": trace,
        "tags": [tag for tag in list_of(about.get("tags")) if isinstance(tag, str)] or None,
        "release": _text(about, "release"),
        "environment": _text(about, "environment"),
        "judged": {name: parts for name, parts in judged.items() if parts} or None,
    }
    return {name: value for name, value in labels.items() if value is not None}


def _kind(fields: JsonObject) -> str:
    if "type" in fields and _get(fields, "start_time") is not None:
        return "observation"
    if (
        "name" in fields
        and ("value" in fields or _get(fields, "data_type") is not None)
        and "observations" not in fields
    ):
        return "score"
    if "id" in fields and ("timestamp" in fields or "observations" in fields):
        return "trace"
    raise MalformedRecord("is neither an observation, nor a score, nor a trace")


def _of_kind(rows: Iterable[JsonObject], kind: str) -> list[JsonObject]:
    return [row for row in rows if _kind(row) == kind]


def _newest(rows: Iterable[JsonObject]) -> list[JsonObject]:
    """Each row once: the last one of those that were exported again."""
    kept: dict[object, JsonObject] = {}
    for place, row in enumerate(rows):
        key = _id(row, "id") or place
        older = kept.get(key)
        if older is None or str(_get(row, "updated_at") or "") >= str(_get(older, "updated_at") or ""):
            kept[key] = row
    return list(kept.values())


def _get(fields: JsonObject, name: str) -> object:
    """A member by its name in an export, or as the API spells it."""
    first, *rest = name.split("_")
    return fields.get(name, fields.get(first + "".join(part.capitalize() for part in rest)))


def _text(fields: JsonObject, name: str) -> str | None:
    return text_or_none(_get(fields, name))


def _id(fields: JsonObject, name: str) -> str | None:
    return id_of(_get(fields, name))


LANGFUSE = Importer(
    summary="Langfuse exports: observations, scores, traces", messages_of=messages_of, group_of=group_of
)
