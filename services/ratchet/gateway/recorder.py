"""Hands captured events to the outbox after the answer has gone out: redacted, in order, failing closed."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter

import msgspec
import structlog

from ratchet.gateway import metrics
from ratchet.gateway.domain.capture import Answer, Asked, turn_of, without_tokens
from ratchet.gateway.domain.conversations import Conversation, Conversations, PastCall, prefix_digests
from ratchet.kernel.errors import RatchetError
from ratchet.kernel.outbox import Outbox
from ratchet.kernel.redaction import Redacted, Redactor, redact_message
from ratchet.messages import Message, Turn

log = structlog.get_logger()

TOOL_SETS = 256
"""Sets of tools whose redaction is remembered."""

_TEXTS = ("messages", "response", "error", "session_id", "agent_id")
"""Members of a turn that hold what people and agents wrote."""


class Recorder:
    """Publishes turns, ends and feedback. Never holds up or breaks the answer of a call."""

    def __init__(self, outbox: Outbox, redactor: Redactor, conversations: Conversations) -> None:
        self._outbox = outbox
        self._redactor = redactor
        self._conversations = conversations
        self._tools: dict[str, Redacted] = {}

    def turn(self, conversation: Conversation, asked: Asked, answer: Answer, latency_ms: float | None) -> None:
        """Record a call once the running request has been answered: before the agent can make the next one."""
        asyncio.get_running_loop().call_soon(self._turn, conversation, asked, answer, latency_ms)

    def event(self, message: Message) -> None:
        """Redact and queue an event, in order after the turns before it. Raises what is wrong with it."""
        safe, _ = redact_message(self._redactor, message)
        self._outbox.put(safe)
        self._measure()

    def _turn(self, conversation: Conversation, asked: Asked, answer: Answer, latency_ms: float | None) -> None:
        try:
            turn = self._redacted(turn_of(asked, answer, latency_ms))
            accepted = self._outbox.put(turn)
        except RatchetError as error:
            metrics.UNPUBLISHED.labels(type(error).__name__).inc()
            log.error("turn not published", trajectory=asked.trajectory_id, reason=str(error))
            return
        self._measure()
        if not accepted:
            return
        conversation.published += 1
        if answer.message is not None:
            self._conversations.remember(conversation, _past(asked, answer, turn))

    def _redacted(self, turn: Turn) -> Turn:
        """The turn as it may be published. Raises `Rejected` when it cannot be searched."""
        tools = self._redacted_tools(turn)
        texts = self._redactor.redact({name: getattr(turn, name) for name in _TEXTS})
        counts = Counter(texts.counts) + Counter(tools.counts)
        if not counts:
            return turn
        return without_tokens(msgspec.structs.replace(turn, tools=tools.value, **texts.value), counts)

    def _redacted_tools(self, turn: Turn) -> Redacted:
        """The offered tools, searched once for each set of tools: they are long and nearly always the same."""
        if not turn.tools or turn.tools_digest is None:
            return Redacted(turn.tools)
        if turn.tools_digest not in self._tools:
            if len(self._tools) >= TOOL_SETS:
                self._tools.clear()
            self._tools[turn.tools_digest] = self._redactor.redact(turn.tools)
        return self._tools[turn.tools_digest]

    def _measure(self) -> None:
        metrics.PENDING.set(self._outbox.pending)
        metrics.OVERFLOWED.set(self._outbox.stats.overflowed)


def _past(asked: Asked, answer: Answer, turn: Turn) -> PastCall:
    """What a later call of the trajectory may continue."""
    whole = [*asked.messages, answer.message or {}]
    ids = (*(answer.prompt_ids or ()), *(answer.output_ids or ())) if turn.prompt_token_ids else ()
    return PastCall(
        turn_id=asked.turn_id,
        index=asked.index,
        messages=len(whole),
        digest=prefix_digests(whole)[-1],
        token_ids=array("i", ids),
        tools_digest=turn.tools_digest,
        redacted=turn.trainable.reason == "redacted",
    )
