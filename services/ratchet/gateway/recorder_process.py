"""A recorder process: reads jobs from standard input and answers each, in order, with its record for the broker.

It redacts what a call or event holds, checks it against the contract, and seals it. That costs milliseconds per call
and seconds for a hostile one, so the gateway (`RecorderPool`) runs it as `python -m ratchet.gateway.recorder_process
BYTES`. The process ends when its input does, and so never outlives its gateway.

Every turn is checked by its schema. To check by type and only sample the schema would save 1 to 2 % of a recorder (86
against 47 µs of 2,080 for a turn of 18 KB) and nothing of what agents wait for, and what types do not hold would be
refused by the collector, where the call is lost; here it becomes a bare turn with its reason.
"""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import msgspec

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Record, Sealer
from ratchet.core.contract import MESSAGES, JsonObject, Turn
from ratchet.core.contract.gateway_notes import CallNote
from ratchet.core.contract.turn import Applied, Constraint, Usage
from ratchet.core.errors import InvalidMessage, Rejected
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.chat.links import call_ids, extended, prefix_digests, repeated_ids
from ratchet.core.rules.constraints import Irreproducible
from ratchet.core.rules.recorded import ids_digest, without_tokens
from ratchet.core.rules.redaction import Redacted, redact, redact_message, rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.dialects.answers import Answer, is_miscounted, provider_of
from ratchet.dialects.api_dialect import ApiDialect
from ratchet.dialects.apis import APIS
from ratchet.dialects.requests import (
    Body,
    CallRequest,
    constraint_of,
    is_multimodal,
    parameters_of,
    read_fields,
)
from ratchet.dialects.streams import UNREADABLE, EventSplitter, datas, folded
from ratchet.gateway.domain.past_calls import Conversation, Conversations, PastCall, ToolSets, system_digest
from ratchet.gateway.domain.prices import Price
from ratchet.gateway.domain.turns import (
    CANCELLED,
    CONSTRAINED,
    INVALID,
    MULTIMODAL,
    TOO_LARGE,
    UNSEARCHABLE,
    UNSEARCHED,
    TurnHeader,
    TurnRequest,
    applied_of,
    bare_turn,
    turn_of,
    without_ids,
)
from ratchet.gateway.span_records import SpansJob, TakenSpans, take_spans

SOURCE = "gateway"
"""The publisher that records name."""
LENGTH = struct.Struct("<I")
"""In front of every frame: its number of bytes."""
NICENESS = 5
"""The processor serves agents who wait for an answer before the record of that answer."""
TOOL_BYTES = 16 * 1024 * 1024
"""Memory for redacted sets of tools: thousands, as agents have them."""
SHORT_TEXT = 1024
"""Characters of a text that a bare turn may still hold: the gateway itself redacts it, while agents wait."""
NOTED_IDS, NOTED_CHARACTERS = 256, 256
"""Ids of tool calls that notes hold, and how long such an id may be."""
LEFT_OUT = "[left out: it is long, or cannot be searched for secrets]"
_TEXTS = ("messages", "response", "error", "session_id", "agent_id", "parameters")
"""Members of a turn that hold texts of people and agents."""
_ROLES = frozenset({"system", "developer", "user", "assistant"})
"""Roles that a message without its content may have."""


class CallJob(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call that is over."""

    header: TurnHeader
    dialect: str
    """Name of the API in which the agent asked."""
    request: bytes
    """As the agent sent it."""
    answer: bytes
    """As the engine gave it: whole, or as events; empty without one."""
    latency_ms: float | None
    asked: bytes | None = None
    """The request as the engine got it, in the agent's API, where the policy's bundle changed it."""
    answer_dialect: str | None = None
    """Name of the API in which the engine answered, where it is another one."""
    streamed: bool = False
    """The answer came as events."""
    kept: bool = True
    """The answer is all that came; else some events of a large stream, which tell its usage."""
    choice: int = 0
    """Which of several answers this job is about."""
    first_token_ms: float | None = None
    """Until the first content of a stream came."""
    error: str | None = None
    barred: Reason | None = None
    """Why no learner may use it, whatever it holds."""
    logprob_mode: str | None = None
    """Which distribution the engine's log-probabilities are of, where its answer does not name one."""
    price: Price | None = None
    """Of the tokens; None when it is not known."""
    request_id: str | None = None
    """The engine's name for the call."""
    elsewhere: tuple[CallNote, ...] = ()
    """Earlier calls of its trajectory that other processes have recorded."""

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.request) + len(self.asked or b"") + len(self.answer)


class EventJob(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An end or feedback that an agent sent, checked by the strict view."""

    topic: str
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.body)


Job = CallJob | EventJob | SpansJob


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """What metrics count of a turn."""

    reason: str | None
    """Why no learner may use it; None when one may."""
    key_id: str | None
    usage: Usage | None
    cost_usd: float | None


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """What became of a job."""

    record: Record | None
    """As it goes to the broker; None when the gateway must not publish it."""
    problem: str | None = None
    """Why the record lacks something: `unsearched` or `invalid`."""
    detail: str | None = None
    """More of it for the log. Holds no text of people or agents."""
    counted: Counted | None = None
    """Of a turn, what metrics count."""
    call: CallNote | None = None
    """What the next call's record depends on, wherever it is made."""
    spans: TakenSpans | None = None
    """Of a request of OTLP, its records."""


class RecordMaker:
    """Makes records of jobs. Remembers the conversations that pass through it, within `conversation_bytes`."""

    def __init__(self, sealer: Sealer, conversation_bytes: int, tool_bytes: int = TOOL_BYTES) -> None:
        self._sealer = sealer
        self._conversations = Conversations(conversation_bytes)
        self._tools = ToolSets(tool_bytes)

    def record(self, job: Job) -> Recorded:
        """The job's record. Never raises: a call that it cannot record as it is becomes a bare turn with the reason."""
        try:
            if isinstance(job, CallJob):
                return self._record_call(job)
            if isinstance(job, SpansJob):
                return Recorded(None, spans=take_spans(job, self._sealer))
            message, _ = redact_message(msgspec.json.decode(job.body, type=MESSAGES[job.topic]))
            return Recorded(self._sealer.seal(message))
        except Exception as error:  # noqa: BLE001 - the boundary: no job may end the recorder of all others
            detail = type(error).__name__  # and no more: the text of an error may hold what people wrote
        if isinstance(job, CallJob):
            return self._sealed(short_turn(job, UNSEARCHED), UNSEARCHED, detail)
        return Recorded(None, UNSEARCHED, detail)

    def _record_call(self, job: CallJob) -> Recorded:
        """Find what the call continues, make the turn, redact it, seal it, and remember the call for the next one."""
        dialect = APIS[job.dialect]
        request = dialect.read(read_fields(job.request))
        asked = dialect.read(read_fields(job.asked)) if job.asked is not None else request
        constraint = constraint_of(asked)
        answer = _answer_of(job, asked, moved=isinstance(constraint, Irreproducible))
        messages = request.messages_of(job.choice)
        conversation = self._conversations.open(job.header.trajectory_id, job.header.role)
        for note in job.elsewhere:
            conversation.learn(note)
        digests = prefix_digests(messages)
        parent, continues = _parent_of(conversation, job.header, messages, digests)
        hint = job.header.parent_hint if parent is None else None
        index = parent.index + 1 if parent else job.header.turns if hint else 0
        prompted = TurnRequest(
            messages=messages,
            tools=request.tools or None,
            sampling=asked.sampling,
            digest=hashlib.sha256(job.request).hexdigest(),
            index=index,
            attempt=conversation.next_attempt(parent.turn_id if parent else hint, index),
            parent=parent,
            continues=continues,
            parent_hint=hint,
            parameters=parameters_of(request, job.header.role),
            constraint=constraint if isinstance(constraint, Constraint) else None,
            applied=applied_of(request, asked, job.choice) if asked is not request else None,
        )
        whole = turn_of(job.header, prompted, answer, job.latency_ms)
        cost_usd = None
        if job.price is not None and answer.usage is not None:
            cost_usd = job.price.cost_of(answer.usage, with_prompt=job.choice == 0)
        whole = msgspec.structs.replace(whole, api=job.dialect, first_token_ms=job.first_token_ms, cost_usd=cost_usd)
        try:
            turn = self._redact(whole)
        except Rejected as error:
            turn = self._redact(without_unsearchable(whole))
            return replace_problem(self._seal(job, turn), UNSEARCHED, type(error).__name__)
        recorded = self._seal(job, turn)
        if not job.kept:
            return replace_problem(recorded, TOO_LARGE, "the stream is not kept")
        call = None
        if answer.message is not None and recorded.problem is None:
            call = _past_call(turn, answer, messages, digests[-1])
            self._conversations.remember(conversation, call)
        return msgspec.structs.replace(recorded, call=_call_note(turn, call))

    def _redact(self, turn: Turn) -> Turn:
        """The turn as it may be published. Raises `Rejected` when the redactor cannot search it.

        A secret in the run's name bars no tokens: the name is no part of the prompt.
        """
        if turn.trajectory_name is not None:
            turn = msgspec.structs.replace(turn, trajectory_name=redact(turn.trajectory_name).value)
        tools = Redacted(turn.tools)
        if turn.tools and turn.tools_digest is not None:
            known = self._tools.get_redacted(turn.tools_digest, turn.tools)
            tools = known or redact(turn.tools)
            if known is None:
                self._tools.put_redacted(turn.tools_digest, tools)
        baggage = turn.trace.baggage if turn.trace else None
        apart = {
            "baggage": baggage,
            "constraint": msgspec.to_builtins(turn.constraint),
            "applied": msgspec.to_builtins(turn.applied),
        }
        texts = redact(apart | {name: getattr(turn, name) for name in _TEXTS})
        if not texts.counts and not tools.counts:
            return turn
        counts = Counter(texts.counts) + Counter(tools.counts)
        baggage = texts.value.pop("baggage")
        trace = turn.trace and msgspec.structs.replace(turn.trace, baggage=baggage)
        kinds = {"constraint": Constraint | None, "applied": Applied | None}
        typed = {name: msgspec.convert(texts.value.pop(name), kind) for name, kind in kinds.items()}
        safe = msgspec.structs.replace(turn, tools=tools.value, trace=trace, **typed, **texts.value)
        return without_tokens(safe, Reason.REDACTED, counts)

    def _seal(self, job: CallJob, turn: Turn) -> Recorded:
        """The turn as a record: whole, else without tokens, else bare, as the contract allows."""
        try:
            return self._sealed(turn)
        except InvalidMessage as error:
            detail = error.path
        try:
            safe = without_tokens(turn, turn.trainable.reason or INVALID, turn.redactions)
            return self._sealed(safe, INVALID, detail)
        except InvalidMessage:
            return self._sealed(short_turn(job, INVALID), INVALID, detail)

    def _sealed(self, turn: Turn, problem: str | None = None, detail: str | None = None) -> Recorded:
        return Recorded(self._sealer.seal(turn), problem, detail, counted_of(turn))


def _past_call(turn: Turn, answer: Answer, messages: Sequence[JsonObject], digest: bytes) -> PastCall:
    """An answered call as the next one may continue it; `digest` is of its prompt."""
    ids = (*(answer.prompt_ids or ()), *(answer.output_ids or ())) if turn.prompt_token_ids else ()
    spoken = {**(answer.message or {}), "role": "assistant"}
    return PastCall(
        turn_id=turn.turn_id,
        index=turn.index,
        messages=len(messages) + 1,
        digest=extended(digest, spoken),
        token_ids=array("i", ids),
        tools_digest=turn.tools_digest,
        applied=turn.applied.digest if turn.applied else None,
        redacted=turn.trainable.reason == Reason.REDACTED,
        system=system_digest(messages),
        call_ids=frozenset(call_ids(spoken)),
    )


def _call_note(turn: Turn, call: PastCall | None) -> CallNote:
    """What other processes need of a recorded call: of one that no call can continue, only which attempt it was."""
    place = CallNote(
        trajectory_id=turn.trajectory_id,
        role=turn.role,
        turn_id=turn.turn_id,
        number=1,
        index=turn.index,
        attempt=turn.attempt,
        parent_turn_id=turn.parent_turn_id,
    )
    if call is None:
        return place
    return msgspec.structs.replace(
        place,
        messages=call.messages,
        digest=call.digest.hex(),
        system=call.system.hex() or None,
        tools_digest=call.tools_digest,
        applied=call.applied,
        redacted=call.redacted,
        call_ids=[
            call_id for call_id in call.call_ids if 0 < len(call_id) <= NOTED_CHARACTERS and call_id.isprintable()
        ][:NOTED_IDS],
        ids=len(call.token_ids),
        ids_digest=ids_digest(call.token_ids) if call.token_ids else None,
    )


def _parent_of(
    conversation: Conversation, header: TurnHeader, messages: Sequence[JsonObject], digests: Sequence[bytes]
) -> tuple[PastCall | None, bool]:
    """The remembered call that a prompt continues, and whether the prompt begins with its conversation, word for word.

    A prompt may begin with an early call and repeat a later one, which its agent has compacted: that is the parent.
    """
    begun = conversation.parent_of(digests)
    ids = {call_id for message in messages for call_id in repeated_ids(message)}
    repeated = conversation.repeated_by(header.parent_hint, ids)
    if repeated is not None and (begun is None or repeated.index > begun.index):
        return repeated, False
    return begun, begun is not None and begun.system == system_digest(messages)


def without_unsearchable(turn: Turn) -> Turn:
    """The turn without what the redactor cannot search, and without tokens: the rest still says what happened."""

    def searchable(value: object) -> bool:
        try:
            redact(value)
        except (Rejected, RecursionError):
            return False
        return True

    def kept(message: JsonObject) -> JsonObject:
        if searchable(message):
            return message
        role = message.get("role")
        return {"role": role if role in _ROLES else "user", "content": LEFT_OUT}

    safe = msgspec.structs.replace(
        turn,
        messages=[kept(message) for message in turn.messages],
        response=kept({"role": "assistant", **turn.response}) if turn.response else None,
        tools=[tool for tool in turn.tools if searchable(tool)] if turn.tools else None,
        parameters=turn.parameters if searchable(turn.parameters) else None,
        constraint=turn.constraint if searchable(msgspec.to_builtins(turn.constraint)) else None,
        applied=turn.applied if searchable(msgspec.to_builtins(turn.applied)) else None,
        error=turn.error if searchable(turn.error) else LEFT_OUT,
    )
    return without_tokens(safe, UNSEARCHED)


def replace_problem(recorded: Recorded, problem: str, detail: str) -> Recorded:
    """A record that lacks something, unless it lacks more already."""
    return recorded if recorded.problem else msgspec.structs.replace(recorded, problem=problem, detail=detail)


def _answer_of(job: CallJob, request: CallRequest, *, moved: bool) -> Answer:
    """The engine's answer, taken apart and barred where no learner may use it, as of a distribution that was moved."""
    finish = CANCELLED if job.barred == CANCELLED else None
    if not job.answer:
        provider = provider_of({}, job.request_id)
        return Answer(message=None, error=job.error, barred=job.barred, finish_reason=finish, provider=provider)
    dialect = APIS[job.answer_dialect or job.dialect]
    whole, unreadable = _whole_of(dialect, job)
    try:
        answer = dialect.answer(whole, job.choice)
        provider = provider_of(whole, job.request_id)
        miscounted = is_miscounted(whole, request.choices)
    except UNREADABLE:
        answer, unreadable, miscounted = Answer(message=None), True, False
        provider = None
    reasons = {
        CONSTRAINED: moved,
        MULTIMODAL: is_multimodal([*request.messages, answer.message or {}]),
        Reason.UNREADABLE: unreadable,
        Reason.COUNT_MISMATCH: miscounted and answer.output_ids is not None,
    }
    answer = replace(
        answer,
        provider=provider,
        logprob_mode=answer.logprob_mode or job.logprob_mode,
        finish_reason=finish or answer.finish_reason,
        error=job.error,
        barred=job.barred or next((reason for reason, holds in reasons.items() if holds), None),
    )
    if not job.kept:
        return replace(without_ids(answer, job.barred or TOO_LARGE), message=None)
    return answer if request.searchable else without_ids(answer, UNSEARCHABLE)


def _whole_of(dialect: ApiDialect, job: CallJob) -> tuple[Body, bool]:
    """The answer of a job as its API gives it whole, and whether some of it cannot be read and is left out."""
    if not job.streamed:
        return msgspec.json.decode(job.answer), False
    return folded(dialect.fold, list(datas(EventSplitter().feed(job.answer + b"\n\n"))))


def counted_of(turn: Turn) -> Counted:
    """What metrics count of a turn."""
    reason = None if turn.trainable.ok else turn.trainable.reason or Reason.UNKNOWN
    return Counted(reason, turn.key_id, turn.usage, turn.cost_usd)


def short_turn(job: CallJob, reason: Reason) -> Turn:
    """A bare turn with its short texts, redacted; it leaves out the others.

    An error stays an error, and a cancelled call a cancelled one: the canary's statistics count them.
    """
    header = job.header
    texts = {"error": job.error, "session_id": header.session_id, "agent_id": header.agent_id}
    present = {name: text for name, text in texts.items() if text is not None}
    short = {name: text if len(text) <= SHORT_TEXT else LEFT_OUT for name, text in present.items()}
    try:
        safe = redact(short)
    except Rejected:
        safe = Redacted(dict.fromkeys(present, LEFT_OUT))
    return msgspec.structs.replace(
        bare_turn(
            header, hashlib.sha256(job.request).hexdigest(), Reason.ERROR if job.error else reason, job.latency_ms
        ),
        finish_reason=CANCELLED if job.barred == CANCELLED else None,
        redactions=dict(safe.counts) or None,
        **safe.value,
    )


def serve(source: BinaryIO, sink: BinaryIO, maker: RecordMaker) -> None:
    """Announce with an empty frame that work begins, then answer each job with one frame."""
    sink.write(LENGTH.pack(0))
    sink.flush()
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Job)
    while len(header := source.read(LENGTH.size)) == LENGTH.size:
        (length,) = LENGTH.unpack(header)
        recorded = encoder.encode(maker.record(decoder.decode(source.read(length))))
        sink.write(LENGTH.pack(len(recorded)) + recorded)
        sink.flush()


def main() -> None:
    """Record until the input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the gateway, which still has jobs for this process
    os.nice(NICENESS)
    maker = RecordMaker(Sealer(load_contracts(), SOURCE, utc_now, rules_digest()), int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer, maker)


if __name__ == "__main__":
    main()
