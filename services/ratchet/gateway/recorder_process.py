"""A recorder process: reads jobs from standard input and answers each, in order, with its record for the broker.

It redacts what a call or event holds, checks it against the contract, and seals it. That costs milliseconds per call
and seconds for a hostile one, so the gateway (`RecorderPool`) runs it as `python -m ratchet.gateway.recorder_process
BYTES`. The process ends when its input does, and so never outlives its gateway.
"""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import sys
from array import array
from collections import Counter
from dataclasses import replace
from typing import BinaryIO

import msgspec

from ratchet.bus.clock import utc_now
from ratchet.bus.envelope import Record, Sealer
from ratchet.contract import MESSAGES, Turn
from ratchet.errors import InvalidMessage, Rejected
from ratchet.gateway.domain.answers import Answer
from ratchet.gateway.domain.forms import FORMS
from ratchet.gateway.domain.memory import Conversations, PastCall, ToolSets, prefix_digests
from ratchet.gateway.domain.requests import CallRequest
from ratchet.gateway.domain.turns import (
    CANCELLED,
    CONSTRAINED,
    INVALID,
    MULTIMODAL,
    UNSEARCHABLE,
    UNSEARCHED,
    TurnHeader,
    TurnRequest,
    bare_turn,
    turn_of,
    without_ids,
    without_tokens,
)
from ratchet.rules.redaction import Redacted, Redactor, redact_message
from ratchet.service.contracts import load_contracts

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
LEFT_OUT = "[left out: it is long, or cannot be searched for secrets]"
_TEXTS = ("messages", "response", "error", "session_id", "agent_id")
"""Members of a turn that hold texts of people and agents."""


class CallJob(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call that is over."""

    header: TurnHeader
    form: str
    """Path of the completion route."""
    request: bytes
    """As the agent sent it."""
    answer: bytes
    """As the engine gave it; empty without one."""
    latency_ms: float | None
    error: str | None = None
    barred: str | None = None
    """Why no learner may use it, whatever it holds."""
    logprob_mode: str | None = None
    """Which distribution the engine's log-probabilities are of, where its answer does not name one."""

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.request) + len(self.answer)


class EventJob(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An end or feedback that an agent sent, checked by the strict view."""

    topic: str
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.body)


Job = CallJob | EventJob


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """What became of a job."""

    record: Record | None
    """As it goes to the broker; None when the gateway must not publish it."""
    problem: str | None = None
    """Why the record lacks something: `unsearched` or `invalid`."""
    detail: str | None = None
    """More of it for the log. Holds no text of people or agents."""


class RecordMaker:
    """Makes records of jobs. Remembers the conversations that pass through it, within `conversation_bytes`."""

    def __init__(self, sealer: Sealer, redactor: Redactor, conversation_bytes: int) -> None:
        self._sealer = sealer
        self._redactor = redactor
        self._conversations = Conversations(conversation_bytes)
        self._tools = ToolSets(TOOL_BYTES)

    def record(self, job: Job) -> Recorded:
        """The job's record. Never raises: a call that it cannot record as it is becomes a bare turn with the reason."""
        try:
            if isinstance(job, CallJob):
                return self._record_call(job)
            message, _ = redact_message(self._redactor, msgspec.json.decode(job.body, type=MESSAGES[job.topic]))
            return Recorded(self._sealer.seal(message))
        except Exception as error:  # noqa: BLE001 - the boundary: no job may end the recorder of all others
            detail = type(error).__name__  # and no more: the text of an error may hold what people wrote
        if isinstance(job, CallJob):
            return Recorded(self._sealer.seal(short_turn(self._redactor, job, UNSEARCHED)), UNSEARCHED, detail)
        return Recorded(None, UNSEARCHED, detail)

    def _record_call(self, job: CallJob) -> Recorded:
        """Find what the call continues, make the turn, redact it, seal it, and remember the call for the next one."""
        request = FORMS[job.form].read(msgspec.json.decode(job.request))
        answer = _answer_of(job, request)
        conversation = self._conversations.open(job.header.trajectory_id, job.header.role)
        parent = conversation.parent_of(prefix_digests(request.messages))
        index = parent.index + 1 if parent else 0
        asked = TurnRequest(
            messages=request.messages,
            tools=request.tools,
            sampling=request.sampling,
            digest=hashlib.sha256(job.request).hexdigest(),
            index=index,
            attempt=conversation.next_attempt(parent.turn_id if parent else None, index),
            parent=parent,
        )
        turn = self._redact(turn_of(job.header, asked, answer, job.latency_ms))
        recorded = self._seal(job, turn)
        if answer.message is not None and recorded.problem is None:
            whole = [*request.messages, answer.message]
            ids = (*(answer.prompt_ids or ()), *(answer.output_ids or ())) if turn.prompt_token_ids else ()
            call = PastCall(
                turn_id=turn.turn_id,
                index=index,
                messages=len(whole),
                digest=prefix_digests(whole)[-1],
                token_ids=array("i", ids),
                tools_digest=turn.tools_digest,
                redacted=turn.trainable.reason == "redacted",
            )
            self._conversations.remember(conversation, call)
        return recorded

    def _redact(self, turn: Turn) -> Turn:
        """The turn as it may be published. Raises `Rejected` when the redactor cannot search it."""
        tools = Redacted(turn.tools)
        if turn.tools and turn.tools_digest is not None:
            known = self._tools.get_redacted(turn.tools_digest, turn.tools)
            tools = known or self._redactor.redact(turn.tools)
            if known is None:
                self._tools.put_redacted(turn.tools_digest, tools)
        texts = self._redactor.redact({name: getattr(turn, name) for name in _TEXTS})
        counts = Counter(texts.counts) + Counter(tools.counts)
        if not counts:
            return turn
        safe = msgspec.structs.replace(turn, tools=tools.value, **texts.value)
        return without_tokens(safe, "redacted", counts)

    def _seal(self, job: CallJob, turn: Turn) -> Recorded:
        """The turn as a record: whole, else without tokens, else bare, as the contract allows."""
        try:
            return Recorded(self._sealer.seal(turn))
        except InvalidMessage as error:
            detail = error.path
        try:
            safe = without_tokens(turn, turn.trainable.reason or INVALID, turn.redactions)
            return Recorded(self._sealer.seal(safe), INVALID, detail)
        except InvalidMessage:
            return Recorded(self._sealer.seal(short_turn(self._redactor, job, INVALID)), INVALID, detail)


def _answer_of(job: CallJob, request: CallRequest) -> Answer:
    """The engine's answer, taken apart and barred where no learner may use it."""
    if not job.answer:
        return Answer(message=None, error=job.error, barred=job.barred)
    answer = FORMS[job.form].answer(msgspec.json.decode(job.answer))
    answer = replace(answer, logprob_mode=answer.logprob_mode or job.logprob_mode)
    if not request.searchable:
        return without_ids(answer, UNSEARCHABLE)
    barred = job.barred or (CONSTRAINED if request.constrained else MULTIMODAL if request.multimodal else None)
    return replace(answer, barred=barred)


def short_turn(redactor: Redactor, job: CallJob, reason: str) -> Turn:
    """A bare turn with its short texts, redacted; it leaves out the others.

    An error stays an error, and a cancelled call a cancelled one: the canary's statistics count them.
    """
    header = job.header
    texts = {"error": job.error, "session_id": header.session_id, "agent_id": header.agent_id}
    present = {name: text for name, text in texts.items() if text is not None}
    short = {name: text if len(text) <= SHORT_TEXT else LEFT_OUT for name, text in present.items()}
    try:
        safe = redactor.redact(short)
    except Rejected:
        safe = Redacted(dict.fromkeys(present, LEFT_OUT))
    return msgspec.structs.replace(
        bare_turn(header, hashlib.sha256(job.request).hexdigest(), "error" if job.error else reason, job.latency_ms),
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
    maker = RecordMaker(Sealer(load_contracts(), SOURCE, utc_now), Redactor(), int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer, maker)


if __name__ == "__main__":
    main()
