"""From what a format says of a run to the message that is published: redacted, with an id that does not depend on when
it was imported, and with a source that tells it from what the gateway recorded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, cast

import msgspec

from ratchet.core.contract import JsonObject, Outcome, Preference, Trajectory, encode, named_id
from ratchet.core.contract.reward import preference_id
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata, TrajectoryTurn
from ratchet.core.rules.chat import trajectory_turns
from ratchet.core.rules.redaction import redact, redact_message
from ratchet.dialects.foreign_values import number_of
from ratchet.extras.importers.base import (
    UNKNOWN_TIME,
    Facts,
    ImportedPreference,
    ImportedTrajectory,
    ImportOptions,
    MalformedRecord,
)

SUCCESS, FAILURE = 1.0 - 1e-6, 1e-6
M = TypeVar("M", Trajectory, Preference)


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation in the form of a trajectory."""

    prompt: object
    """What stands before the first answer: runs in which it is equal are tries of one task."""
    instructions: str
    entries: Sequence[TrajectoryTurn]


def trajectory_of_chat(
    given: Facts, chat: Chat, options: ImportOptions, source: str, parent: str | None = None
) -> Trajectory:
    """The trajectory of a conversation. Raises as `trajectory_from` does."""
    # Without the scores: some formats read one only where `--outcome` names it, and a second import is the same run.
    identity = [chat.instructions, msgspec.to_builtins(chat.entries), given.task, list(given.tools), dict(given.labels)]
    own_id = given.id or digest_of(identity)
    started_at = _aware(given.started_at) or UNKNOWN_TIME
    ended_at = _aware(given.ended_at) or started_at
    task = without_secrets(given.task) if given.task else named_id("imported prompt", digest_of(chat.prompt))
    labels = {name: value for name, value in given.labels.items() if name != "redactions"}
    labels |= {"scores": dict(given.scores)} if given.scores else {}
    trajectory = Trajectory(
        trajectory_id=named_id(source, own_id),
        session_id=f"{source}/{without_secrets(given.session or own_id)}",
        agent_id=without_secrets(given.agent) if given.agent else source,
        start_timestamp=started_at,
        end_timestamp=max(started_at, ended_at),
        turns=list(chat.entries),
        task_context=TaskContext(
            task_id=task,
            instructions=chat.instructions,
            domain=options.domain or "none",
            tools=list(given.tools) or None,
        ),
        metadata=TrajectoryMetadata(
            model=given.model or options.model,
            source=f"import:{source}",
            total_tokens=given.tokens,
            total_cost_usd=given.cost_usd,
            error=given.error,
        ),
        role=options.role,
        outcome=_outcome(given, options),
        parent_trajectory_id=parent,
        labels=labels or None,
    )
    redacted, counts = _redacted(trajectory)
    if counts:
        redacted = msgspec.structs.replace(redacted, labels={**(redacted.labels or {}), "redactions": counts})
    return redacted


def trajectory_from(given: ImportedTrajectory, options: ImportOptions, source: str) -> Trajectory:
    """The trajectory of a conversation. Raises a `ValueError` or `Rejected` that says what is wrong with it."""
    messages = chat_of(list(given.messages))
    instructions, turns = trajectory_turns(messages, started_at=_aware(given.started_at) or UNKNOWN_TIME)
    if not turns:
        raise MalformedRecord("holds no message of the assistant")
    return trajectory_of_chat(given, Chat(prompt_of(messages), instructions, turns), options, source)


def preference_from(given: ImportedPreference, options: ImportOptions, source: str) -> Preference:
    """The preference of a pair. Raises a `ValueError` or `Rejected` that says what is wrong with it."""
    for name, answer in (("prompt", given.prompt), ("chosen", given.chosen), ("rejected", given.rejected)):
        if not (answer.strip() if isinstance(answer, str) else answer):
            raise MalformedRecord(f"has an empty {name}")
    if given.chosen == given.rejected:
        raise MalformedRecord("chosen and rejected are the same")
    rater = f"import:{source}"
    preference = Preference(
        preference_id=preference_id(
            [options.role, options.judged_by, rater, given.prompt, given.chosen, given.rejected]
        ),
        prompt=given.prompt,
        chosen=given.chosen,
        rejected=given.rejected,
        source=options.judged_by,
        role=options.role,
        rater=rater,
        domain=options.domain,
        tools=list(given.tools) or None,
    )
    redacted, counts = _redacted(preference)
    return msgspec.structs.replace(redacted, labels={"redactions": counts}) if counts else redacted


def fields_of(value: object) -> JsonObject:
    """The members of a record. Raises `MalformedRecord`."""
    if not isinstance(value, dict):
        raise MalformedRecord("is not an object")
    return cast("JsonObject", value)


def chat_of(value: object, name: str = "messages") -> list[JsonObject]:
    """A list of messages. Raises `MalformedRecord`."""
    if not isinstance(value, list) or not value:
        raise MalformedRecord(f"{name} is not a list of messages")
    for index, message in enumerate(cast("list[object]", value)):
        if not isinstance(message, dict):
            raise MalformedRecord(f"message {index} of {name} is not an object")
    return cast("list[JsonObject]", value)


def prompt_of(messages: Sequence[JsonObject]) -> list[JsonObject]:
    """The messages before the first answer."""
    first = next((place for place, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return list(messages[:first])


def without_secrets(name: str) -> str:
    """A name of the other system; one that holds a secret becomes its digest: different names stay different."""
    return name if redact(name).value == name else named_id("imported name", name)


def _aware(instant: datetime | None) -> datetime | None:
    return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant


def _outcome(given: Facts, options: ImportOptions) -> Outcome | None:
    value: object = given.scores.get(options.outcome) if options.outcome else None
    if value is None:
        return None
    score = number_of(value)  # importers of others may give anything
    if score is None:
        raise MalformedRecord(f"the score {options.outcome} is {value!r}, not a number")
    if not 0.0 <= score <= 1.0:
        raise MalformedRecord(f"the score {options.outcome} is {score:g}; an outcome lies between 0 and 1")
    status = "success" if score >= SUCCESS else "failure" if score <= FAILURE else "partial"
    return Outcome(status=status, completion_percentage=100.0 * score, score=score, verified_by=options.outcome)


def _redacted(message: M) -> tuple[M, Mapping[str, int]]:
    with _json():
        redacted, counts = redact_message(message)
        encode(redacted)  # text that is not Unicode shows here, and not on the way to the broker
    return redacted, counts


def digest_of(value: object) -> str:
    """A name for content. Raises `MalformedRecord` for what JSON cannot say."""
    with _json():
        return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def _json() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise MalformedRecord("is nested too deeply") from error
    except (OverflowError, TypeError) as error:
        raise MalformedRecord(f"holds a value that JSON cannot say: {error}") from error
