"""From the model calls of one trace to trajectories, as the collector makes them of the gateway's calls.

Tracing systems log each model call with its whole prompt. Calls that continue one another are one conversation; a trace
with sub-agents holds several, and each is a trajectory: the first has the trace's id, the others name it as parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ratchet.core.contract import JsonObject, PolicyClaim, Trajectory, Turn, named_id
from ratchet.core.contract.turn import EngineInfo, Trainable
from ratchet.core.rules.chat import Conversation, conversations, entries_of
from ratchet.extras.importers.base import UNKNOWN_TIME, Facts, ImportOptions, MalformedRecord
from ratchet.extras.importers.building import Chat, digest_of, trajectory_of_chat

NO_POLICY = PolicyClaim(role="default", version=0, digest="", arm="stable", weight=0.0)
NOT_TRAINABLE = Trainable(ok=False, reason="no_token_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCall:
    """One model call of a trace."""

    id: str | None
    """Without one, its place among equal calls of the trace tells it."""
    prompt: Sequence[JsonObject]
    answer: JsonObject
    """The assistant message."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    model: str | None = None
    tools: Sequence[JsonObject] = ()
    tokens: int | None = None
    cost_usd: float | None = None


def trajectories_of_calls(
    given: Facts, calls: Sequence[LoggedCall], options: ImportOptions, source: str
) -> Iterator[Trajectory]:
    """The trajectories of a trace. Raises a `ValueError` or `Rejected` that says what is wrong with it."""
    if not calls:
        raise MalformedRecord("holds no model call with a prompt and an answer")
    ordered = sorted(_named(calls), key=lambda named: (named[1].started_at or UNKNOWN_TIME, named[0]))
    by_id = dict(ordered)
    parent: str | None = None
    for conversation in conversations([_turn(name, call, place) for place, (name, call) in enumerate(by_id.items())]):
        instructions, entries = entries_of(conversation)
        facts = _facts(given, conversation, by_id, is_first=parent is None)
        chat = Chat(conversation.prompt_digest, instructions, entries)
        made = trajectory_of_chat(facts, chat, options, source, parent)
        parent = parent or made.trajectory_id
        yield made


def _named(calls: Sequence[LoggedCall]) -> Iterator[tuple[str, LoggedCall]]:
    """Each call with its id, or with one that its content gives it, whatever the order of the file."""
    equal: Counter[str] = Counter()
    for call in calls:
        if call.id:
            yield call.id, call
            continue
        name = digest_of([call.prompt, call.answer, call.started_at])
        equal[name] += 1
        yield f"{name}/{equal[name]}", call


def _turn(name: str, call: LoggedCall, place: int) -> Turn:
    """The call in the form in which calls are linked; it is never published."""
    return Turn(
        turn_id=named_id("logged call", name),
        trajectory_id="",
        timestamp=call.started_at or UNKNOWN_TIME,
        index=place,
        request_digest=name,
        messages=list(call.prompt),
        response=call.answer,
        policy=NO_POLICY,
        engine=EngineInfo(name="imported"),
        trainable=NOT_TRAINABLE,
    )


def _facts(given: Facts, conversation: Conversation, by_id: dict[str, LoggedCall], *, is_first: bool) -> Facts:
    """What is true of one conversation: times, model, tools and costs of its own calls."""
    own = [by_id[turn.request_digest] for turn in conversation.calls]
    starts = [call.started_at for call in own if call.started_at is not None]
    ends = [call.ended_at for call in own if call.ended_at is not None]
    tokens = [call.tokens for call in own if call.tokens is not None]
    costs = [call.cost_usd for call in own if call.cost_usd is not None]
    return replace(
        given,
        id=given.id if is_first else f"{given.id}/{conversation.calls[0].request_digest}",
        started_at=min(starts, default=given.started_at),
        ended_at=max(ends, default=given.ended_at),
        model=next((call.model for call in own if call.model), given.model),
        tools=next((call.tools for call in reversed(own) if call.tools), given.tools),
        tokens=sum(tokens) if tokens else None,
        cost_usd=sum(costs) if costs else None,
        # What was judged is the run of the agent, not the errand of one of its workers.
        scores=given.scores if is_first else {},
    )
