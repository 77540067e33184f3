"""Imports LangSmith's runs: the model calls of each trace, with its feedback.

Read as LangSmith's page "Run (span) data format" and its Python SDK's `Run` describe them (as of 2026): runs as JSON
lines, one each (`run.json()` of `Client.list_runs`), with or without `child_runs` inside, and the Parquet files of a
bulk export, in which objects are JSON text. A folder is one export; runs of one `trace_id` are put together.
Messages in LangChain's form become OpenAI's.

Runs of the type `llm` are the model calls. A trace without any is read by its first run, if that has messages. Feedback
is the average of `feedback_stats`; that of the trace's first run stands above that of its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
from ratchet.extras.importers.base import Facts, ImportedTrajectory, Importer, ImportOptions, MalformedRecord
from ratchet.extras.importers.building import fields_of, trajectory_from
from ratchet.extras.importers.calls import LoggedCall, trajectories_of_calls

SOURCE = "langsmith"
THREADS = ("thread_id", "session_id", "conversation_id")
"""Members of a run's metadata that name the conversation of which a trace is one exchange."""


def group_of(run: object) -> str | None:
    """The trace of a run. Raises `MalformedRecord` for what is no run."""
    fields = fields_of(run)
    trace = id_of(fields.get("trace_id")) or (id_of(fields.get("id")) if _is_first(fields) else None)
    if trace is None or "run_type" not in fields:
        raise MalformedRecord("is no run: it has no trace_id or no run_type")
    return trace


def messages_of(runs: object, options: ImportOptions) -> Iterator[Trajectory]:
    """The trajectories of a trace: one for each conversation. Raises a `ValueError` or `Rejected`."""
    every = _flat([fields_of(run) for run in list_of(runs)])
    first = next((run for run in every if _is_first(run) or run.get("id") == run.get("trace_id")), every[0])
    metadata = object_of(object_of(first.get("extra")).get("metadata"))
    trace = id_of(first.get("trace_id")) or id_of(first.get("id"))
    tags = [tag for tag in list_of(first.get("tags")) if isinstance(tag, str)]
    facts = Facts(
        id=trace,
        session=next((text for name in THREADS if (text := text_or_none(metadata.get(name)))), None),
        task=text_or_none(first.get("reference_example_id")),
        agent=text_or_none(first.get("name")),
        started_at=instant_of(first.get("start_time")),
        ended_at=instant_of(first.get("end_time")),
        error=text_or_none(first.get("error")),
        scores=_scores([*(run for run in every if run is not first), first]),
        labels={"trace_id": trace, **({"tags": tags} if tags else {})},
    )
    calls = [call for run in every if run.get("run_type") == "llm" and (call := _call(run)) is not None]
    if calls:
        yield from trajectories_of_calls(facts, calls, options, SOURCE)
        return
    yield trajectory_from(_of_first(first, facts), options, SOURCE)


def _flat(runs: Sequence[JsonObject]) -> list[JsonObject]:
    """All runs once, those inside of others too."""
    flat: dict[object, JsonObject] = {}
    waiting = list(reversed(runs))
    while waiting:
        run = waiting.pop()
        flat[id_of(run.get("id")) or len(flat)] = run
        waiting += reversed(objects_of(run.get("child_runs")))
    return list(flat.values())


def _call(run: JsonObject) -> LoggedCall | None:
    """The model call of a run; None for one without prompt or answer."""
    prompt, answer = _prompt(run), answer_of(object_of(run.get("outputs")))
    if not prompt or answer is None:
        return None
    extra = object_of(run.get("extra"))
    parameters = object_of(extra.get("invocation_params"))
    names = (
        object_of(extra.get("metadata")).get("ls_model_name"),
        parameters.get("model"),
        parameters.get("model_name"),
    )
    return LoggedCall(
        id=id_of(run.get("id")),
        prompt=prompt,
        answer=answer,
        started_at=instant_of(run.get("start_time")),
        ended_at=instant_of(run.get("end_time")),
        model=next((name for name in map(text_or_none, names) if name), None),
        tools=tools_of(parameters.get("tools")) or tools_of(object_of(run.get("inputs")).get("tools")),
        tokens=count_of(run.get("total_tokens")),
        cost_usd=cost_of(run.get("total_cost")),
    )


def _prompt(run: JsonObject) -> list[JsonObject]:
    inputs = object_of(run.get("inputs"))
    for name in ("messages", "prompts", "prompt", "input"):
        if inputs.get(name):
            return chat_of_prompt(inputs[name])
    return []


def _of_first(first: JsonObject, facts: Facts) -> ImportedTrajectory:
    """The conversation of an agent whose model calls were not logged: what went in, and what came out."""
    outputs = object_of(first.get("outputs"))
    prompt = _prompt(first)
    following = chat_of_prompt(outputs["messages"]) if isinstance(outputs.get("messages"), list) else []
    if following[: len(prompt)] == prompt:  # an agent of LangGraph hands out all its messages
        prompt = []
    answer = answer_of(outputs) if not following else None
    messages = [*prompt, *following, *([answer] if answer else [])]
    if not messages or not (following or answer):
        raise MalformedRecord("is a trace without a run of the type llm, and its first run has no messages")
    members = {name: getattr(facts, name) for name in Facts.__dataclass_fields__}
    return ImportedTrajectory(**members, messages=messages)


def _scores(runs: Sequence[JsonObject]) -> dict[str, float]:
    """The average of each kind of feedback; later runs stand above earlier ones."""
    scores: dict[str, float] = {}
    for run in runs:
        for name, statistics in object_of(run.get("feedback_stats")).items():
            average = number_of(object_of(statistics).get("avg"))
            if average is not None:
                scores[name] = average
    return scores


def _is_first(run: JsonObject) -> bool:
    return not run.get("parent_run_id") and not run.get("parent_run_ids")


LANGSMITH = Importer(
    summary="LangSmith runs, as JSON lines or a bulk export's Parquet", messages_of=messages_of, group_of=group_of
)
