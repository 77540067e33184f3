"""What the spans of a trace add up to: calls as turns, conversations as trajectories, as of calls through the gateway.

The conversations are found as the gateway's are (`domain.assemble`); spans add who called whom, how long tools took and
what they gave back. Ids follow from trace and span: the same spans always make the same messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from ratchet.core.contract import Outcome, PolicyClaim, Trajectory, TrajectoryEnd, Turn, named_id
from ratchet.core.contract.spans import AGENT, TOOL, Span, run_id
from ratchet.core.contract.traces import BY_SPAN, Trace
from ratchet.core.contract.trajectory import TrajectoryTurn, TurnResult
from ratchet.core.contract.turn import EngineInfo, Trainable
from ratchet.core.rules.arms import STABLE
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.chat.links import EMPTY, extended, prefix_digests, tool_calls
from ratchet.core.rules.recorded import turn_refs
from ratchet.dialects.foreign_values import object_of
from ratchet.dialects.telemetry.span_tree import Calls, Key, Tree, exchange_of
from ratchet.trajectory_collector.domain import ERROR, TELEMETRY, Assembled, Inference, Run, assemble

UNKNOWN = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Folded:
    """What a trace adds up to."""

    turns: Sequence[Turn]
    assembled: Assembled
    by_span: Mapping[Key, str]
    """The turn of each call."""


def fold(role: str, trace_id: str, tree: Tree, calls: Calls, inference: Inference, earlier: Run) -> Folded:
    """The turns and trajectories of a trace with calls. `earlier`: what was assembled of it before, if anything.

    Raises `ChatError` when the first conversation cannot be assembled.
    """
    agents = tree.enclosing(lambda span: span.kind == AGENT)
    by_span: dict[Key, str] = {}
    turns: list[Turn] = []
    linker = _Linker()
    for key, span in sorted(calls.whole.items(), key=lambda item: (began(item[1]), item[0])):
        for choice, turn in enumerate(_turns(role, trace_id, key, span, tree, agents)):
            turns.append(linker.linked(turn))
            if choice == 0:
                by_span[key] = turn.turn_id
    end = _end(role, trace_id, tree, turns, inference)
    run = Run(turns, earlier.stored, earlier.children)
    whole = assemble(end, run, inference)
    ran = {span.tool_call_id: span for span in tree.spans.values() if span.kind == TOOL and span.tool_call_id}
    details = _Details(tree, agents, {turn.turn_id: turn for turn in turns}, by_span, ran)
    trajectories = [details.added_to(trajectory) for trajectory in whole.trajectories]
    repeated = whole.repeated + sum(exchange_of(span).left_out for span in calls.whole.values())
    return Folded(turns, Assembled(details.linked(trajectories), whole.unreadable, repeated), by_span)


def turn_id(role: str, trace_id: str, key: Key, choice: int = 0) -> str:
    """Id of the turn that a span becomes; `choice`: which of several answers."""
    return named_id("span", role, trace_id, *key, choice)


def _turns(
    role: str, trace_id: str, key: Key, span: Span, tree: Tree, agents: Mapping[Key, Key | None]
) -> Iterator[Turn]:
    """One turn for each answer of a call; one without an answer for a call that failed."""
    exchange, began_at = exchange_of(span), began(span)
    around = tree.spans[above] if (above := agents[key]) is not None else None
    agent = span.agent or (span.name if span.kind == AGENT else None) or (_agent_of(around) if around else None)
    digest = hashlib.sha256(f"{trace_id}{key[1]}".encode()).hexdigest()
    for choice, response in enumerate(exchange.answers or [None]):
        yield Turn(
            turn_id=turn_id(role, trace_id, key, choice),
            trajectory_id=run_id(trace_id),
            timestamp=began_at,
            index=0,
            request_digest=digest,
            messages=list(exchange.prompt),
            policy=PolicyClaim(role=role, version=0, digest="", arm=STABLE, weight=0.0),
            engine=EngineInfo(name="telemetry"),
            trainable=Trainable(ok=False, reason=Reason.NO_TOKEN_IDS if response else Reason.ERROR),
            role=role,
            session_id=span.session or (around.session if around else None),
            agent_id=agent or key[0] or None,
            user_ref=span.user_ref,
            trajectory_by=BY_SPAN,
            trace=Trace(trace_id=trace_id, span_id=key[1]),
            tools_digest=hashlib.sha256(msgspec.json.encode(span.tools)).hexdigest() if span.tools else None,
            tools=span.tools,
            response=response,
            sampling=span.sampling,
            provider=span.provider,
            usage=span.usage if choice == 0 else None,
            cost_usd=span.cost_usd if choice == 0 else None,
            latency_ms=_took_ms(span),
            first_token_ms=span.first_token_ms,
            finish_reason=span.finish_reason,
            error=span.error if response is None else None,
            redactions=span.redactions,
        )


class _Linker:
    """Leaves out of a turn what an earlier one says already: its prompt begins with that one's conversation."""

    def __init__(self) -> None:
        self._by_conversation: dict[bytes, Turn] = {}

    def linked(self, turn: Turn) -> Turn:
        """The turn as it is published. To be called in the order of the calls."""
        digests = prefix_digests(turn.messages)
        places = range(len(digests) - 1, 0, -1)
        at = next((place for place in places if digests[place] in self._by_conversation), None)
        linked = turn
        if at is not None:
            parent = self._by_conversation[digests[at]]
            known = parent.tools_digest == turn.tools_digest
            linked = msgspec.structs.replace(
                turn,
                messages=turn.messages[at:],
                parent_turn_id=parent.turn_id,
                index=parent.index + 1,
                tools=None if known else turn.tools,
            )
        if turn.response is not None:
            answered = extended(digests[-1] if turn.messages else EMPTY, {**turn.response, "role": "assistant"})
            self._by_conversation.setdefault(answered, linked)
        return linked


def _end(role: str, trace_id: str, tree: Tree, turns: Sequence[Turn], inference: Inference) -> TrajectoryEnd:
    """The end of the run: what the trace says of it as a whole."""
    top = [span for key, span in tree.spans.items() if key not in tree.parents and span.ended_at is not None]
    failed = any(span.error is not None for span in top) and inference.by_errors
    last = max(span.ended_at or began(span) for span in tree.spans.values())
    return TrajectoryEnd(
        trajectory_id=run_id(trace_id),
        timestamp=max(last, *(turn.timestamp for turn in turns)),
        role=role,
        session_id=next((span.session for span in [*top, *tree.spans.values()] if span.session), None),
        user_ref=next((span.user_ref for span in [*top, *tree.spans.values()] if span.user_ref), None),
        turns=len(turns),
        outcome=Outcome(status="failure", inferred_from=ERROR) if failed else None,
        labels={"trace_id": trace_id, "spans": len(tree.spans), "services": sorted({key[0] for key in tree.spans})},
    )


@dataclass(frozen=True)
class _Details:
    """What spans say of trajectories beside their conversations."""

    tree: Tree
    agents: Mapping[Key, Key | None]
    turns: Mapping[str, Turn]
    by_span: Mapping[Key, str]
    tools: Mapping[str, Span]
    """The spans of tools, by the id of their call."""

    def added_to(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its source, its model, and what its tools did."""
        own = (self.turns.get(entry.turn_ref or "") for entry in trajectory.turns)
        models = (turn.provider.model for turn in own if turn and turn.provider)
        meta = msgspec.structs.replace(
            trajectory.metadata, source=TELEMETRY, model=next(filter(None, models), trajectory.metadata.model)
        )
        return msgspec.structs.replace(trajectory, metadata=meta, turns=list(self._with_tools(trajectory.turns)))

    def linked(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Those of sub-agents name the trajectory of the agent within whose span theirs lies."""
        agent_of = {ref: self._agent(key) for key, ref in self.by_span.items()}
        owned: dict[Key, str] = {}
        for trajectory in trajectories:
            for ref in turn_refs(trajectory):
                if (agent := agent_of.get(ref)) is not None:
                    owned.setdefault(agent, trajectory.trajectory_id)
        return [self._linked(trajectory, agent_of, owned) for trajectory in trajectories]

    def _linked(self, child: Trajectory, agent_of: Mapping[str, Key | None], owned: Mapping[Key, str]) -> Trajectory:
        first = next((entry.turn_ref for entry in child.turns if entry.turn_ref), "")
        own = agent_of.get(first)
        if child.parent_trajectory_id is None or own is None:
            return child
        above, parent = self.agents[own], child.parent_trajectory_id
        while above is not None:
            if owned.get(above, child.trajectory_id) != child.trajectory_id:
                parent = owned[above]
                break
            above = self.agents[above]
        return msgspec.structs.replace(
            child, parent_trajectory_id=parent, subordinate_profile=_agent_of(self.tree.spans[own])
        )

    def _agent(self, key: Key) -> Key | None:
        return key if self.tree.spans[key].kind == AGENT else self.agents[key]

    def _with_tools(self, entries: Sequence[TrajectoryTurn]) -> Iterator[TrajectoryTurn]:
        """Each tool call with its span: matched by the call's id, which entries do not keep, so by its place."""
        place: dict[str, int] = {}
        for entry in entries:
            ref = entry.turn_ref or ""
            number = place[ref] = place.get(ref, -1) + 1
            made = tool_calls(self.turns[ref].response or {}) if ref in self.turns else []
            named = object_of(made[number]).get("id") if number < len(made) else None
            span = self.tools.get(named) if isinstance(named, str) and entry.action.type == "tool_call" else None
            yield msgspec.structs.replace(entry, result=_with_span(entry.result, span)) if span is not None else entry


def _with_span(result: TurnResult, span: Span) -> TurnResult:
    output = result.output if result.output is not None else span.tool_output
    return TurnResult(
        success=span.error is None and (result.success or output is not None or span.ended_at is not None),
        output=output,
        error=span.error,
        execution_time_ms=_took_ms(span),
    )


def _took_ms(span: Span) -> float | None:
    return max(0.0, (span.ended_at - began(span)) / timedelta(milliseconds=1)) if span.ended_at else None


def _agent_of(span: Span) -> str:
    return span.agent or span.name


def began(span: Span) -> datetime:
    """When it began; of what only events report, when the first of them came."""
    events = [event.at for event in span.messages or ()] + [event.at for event in span.evaluations or ()]
    return span.started_at or span.ended_at or min(events, default=UNKNOWN)
