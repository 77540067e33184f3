"""What a call becomes on its way to the broker: read, redacted, held against the contract, sealed. Fails closed.

It costs milliseconds per call and seconds for a hostile one, so it runs in processes of its own (`recorder_process`).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from dataclasses import replace

import msgspec

from ratchet.bus.envelope import Record, Sealer
from ratchet.contract import MESSAGES, Turn
from ratchet.errors import InvalidMessage, Rejected
from ratchet.gateway.domain.calls import CallRequest
from ratchet.gateway.domain.capture import (
    CANCELLED,
    CONSTRAINED,
    INVALID,
    MULTIMODAL,
    UNSEARCHABLE,
    UNSEARCHED,
    Answer,
    Asked,
    Said,
    bare_turn,
    turn_of,
    without_ids,
    without_tokens,
)
from ratchet.gateway.domain.conversations import Conversations, PastCall, prefix_digests
from ratchet.gateway.domain.forms import FORMS
from ratchet.gateway.domain.tool_sets import ToolSets
from ratchet.rules.redaction import Redacted, Redactor, redact_message

SOURCE = "gateway"
"""What records name as their publisher."""
TOOL_BYTES = 16 * 1024 * 1024
"""Of the sets of tools whose search is remembered: thousands, as agents have them."""
SHORT_TEXT = 1024
"""Characters of a text that a bare turn may still hold: it is redacted where agents wait."""
LEFT_OUT = "[left out: it is long, or cannot be searched for secrets]"
_TEXTS = ("messages", "response", "error", "session_id", "agent_id")
"""Members of a turn that hold what people and agents wrote."""


class CallJob(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call that is over."""

    asked: Asked
    form: str
    """Path of the completion route."""
    request: bytes
    """As the agent sent it."""
    answer: bytes
    """As the engine gave it; empty where it gave none."""
    latency_ms: float | None
    error: str | None = None
    barred: str | None = None
    """Why no learner may use it, whatever it holds."""
    logprob_mode: str | None = None
    """What the engine's log-probabilities are of, where its answer does not say."""

    @property
    def size(self) -> int:
        """Bytes that it takes up."""
        return len(self.request) + len(self.answer)


class EventJob(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """What an agent said of a trajectory, checked by the strict view."""

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
    """As it goes to the broker; None when it may not be published."""
    problem: str | None = None
    """Why the record is not all that it could be: `unsearched` or `invalid`."""
    detail: str | None = None
    """More of it for the log. Holds nothing of what was said."""


class Recording:
    """Makes records of jobs. Remembers the conversations that pass through it, within `conversation_bytes`."""

    def __init__(self, sealer: Sealer, redactor: Redactor, conversation_bytes: int) -> None:
        self._sealer = sealer
        self._redactor = redactor
        self._conversations = Conversations(conversation_bytes)
        self._tools = ToolSets(TOOL_BYTES)

    def record(self, job: Job) -> Recorded:
        """The job's record. Never raises: what cannot be recorded as it is becomes a turn that says so."""
        try:
            return self._call(job) if isinstance(job, CallJob) else self._event(job)
        except Exception as error:  # noqa: BLE001 - the boundary: no call may end the recorder of all others
            detail = type(error).__name__  # and no more: what an error says may hold what somebody wrote
        if isinstance(job, CallJob):
            return self._bare(job, UNSEARCHED, detail)
        return Recorded(None, UNSEARCHED, detail)

    def _bare(self, job: CallJob, reason: str, detail: str) -> Recorded:
        """A record of nothing but that the call happened, how long it took, and whether it failed."""
        return Recorded(self._sealer.seal(short_turn(self._redactor, job, reason)), reason, detail)

    def _event(self, job: EventJob) -> Recorded:
        message = msgspec.json.decode(job.body, type=MESSAGES[job.topic])
        safe, _ = redact_message(self._redactor, message)
        return Recorded(self._sealer.seal(safe))

    def _call(self, job: CallJob) -> Recorded:
        request = FORMS[job.form].read(msgspec.json.decode(job.request))
        answer = _answer(job, request)
        conversation = self._conversations.open(job.asked.trajectory_id, job.asked.role)
        digests = prefix_digests(request.messages)
        parent = conversation.parent_of(digests)
        index = parent.index + 1 if parent else 0
        said = Said(
            messages=request.messages,
            tools=request.tools,
            sampling=request.sampling,
            digest=hashlib.sha256(job.request).hexdigest(),
            index=index,
            attempt=conversation.next_attempt(parent.turn_id if parent else None, index),
            parent=parent,
        )
        turn = self._redacted(turn_of(job.asked, said, answer, job.latency_ms))
        recorded = self._sealed(job, turn)
        if answer.message is not None and recorded.problem is None:
            self._conversations.remember(conversation, _past(said, answer, turn))
        return recorded

    def _sealed(self, job: CallJob, turn: Turn) -> Recorded:
        """The turn as a record; without tokens, or bare, where the contract does not take it as it is."""
        try:
            return Recorded(self._sealer.seal(turn))
        except InvalidMessage as error:
            detail = error.path
        reason = turn.trainable.reason or INVALID
        try:
            return Recorded(self._sealer.seal(without_tokens(turn, reason, turn.redactions)), INVALID, detail)
        except InvalidMessage:
            return self._bare(job, INVALID, detail)

    def _redacted(self, turn: Turn) -> Turn:
        """The turn as it may be published. Raises `Rejected` when it cannot be searched."""
        tools = self._redacted_tools(turn)
        texts = self._redactor.redact({name: getattr(turn, name) for name in _TEXTS})
        counts = Counter(texts.counts) + Counter(tools.counts)
        if not counts:
            return turn
        safe = msgspec.structs.replace(turn, tools=tools.value, **texts.value)
        return without_tokens(safe, "redacted", counts)

    def _redacted_tools(self, turn: Turn) -> Redacted:
        """The offered tools, searched once for each set of tools: they are long and nearly always the same."""
        if not turn.tools or turn.tools_digest is None:
            return Redacted(turn.tools)
        known = self._tools.get(turn.tools_digest, turn.tools)
        if known is None:
            known = self._redactor.redact(turn.tools)
            self._tools.put(turn.tools_digest, known)
        return known


def short_turn(redactor: Redactor, job: CallJob, reason: str) -> Turn:
    """A turn without what was said: texts that are not short are left out, the others are redacted.

    An error stays one, and a cancelled call a cancelled one: the canary's statistics count them.
    """
    asked = job.asked
    texts = {"error": job.error, "session_id": asked.session_id, "agent_id": asked.agent_id}
    said = {name: text for name, text in texts.items() if text is not None}
    short = {name: text if len(text) <= SHORT_TEXT else LEFT_OUT for name, text in said.items()}
    try:
        safe = redactor.redact(short)
    except Rejected:
        safe = Redacted(dict.fromkeys(said, LEFT_OUT))
    return msgspec.structs.replace(
        bare_turn(asked, hashlib.sha256(job.request).hexdigest(), "error" if job.error else reason, job.latency_ms),
        finish_reason=CANCELLED if job.barred == CANCELLED else None,
        redactions=dict(safe.counts) or None,
        **safe.value,
    )


def _answer(job: CallJob, request: CallRequest) -> Answer:
    if not job.answer:
        return Answer(message=None, error=job.error, barred=job.barred)
    answer = FORMS[job.form].answer(msgspec.json.decode(job.answer))
    answer = replace(answer, logprob_mode=answer.logprob_mode or job.logprob_mode)
    if not request.searchable:
        return without_ids(answer, UNSEARCHABLE)
    barred = job.barred or (CONSTRAINED if request.constrained else MULTIMODAL if request.multimodal else None)
    return replace(answer, barred=barred)


def _past(said: Said, answer: Answer, turn: Turn) -> PastCall:
    """What a later call of the trajectory may continue."""
    whole = [*said.messages, answer.message or {}]
    ids = (*(answer.prompt_ids or ()), *(answer.output_ids or ())) if turn.prompt_token_ids else ()
    return PastCall(
        turn_id=turn.turn_id,
        index=said.index,
        messages=len(whole),
        digest=prefix_digests(whole)[-1],
        token_ids=array("i", ids),
        tools_digest=turn.tools_digest,
        redacted=turn.trainable.reason == "redacted",
    )
