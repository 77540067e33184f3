"""The two completion routes as values: how each is read, asked of an engine, taken apart and streamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.gateway.domain.calls import Body, CallRequest
from ratchet.gateway.domain.capture import Answer
from ratchet.gateway.domain.chat import chat_answer, chat_upstream, read_chat
from ratchet.gateway.domain.chunks import Chunks, chat_chunks, stream_of, text_chunks
from ratchet.gateway.domain.completions import completion_answer, completion_upstream, read_completion


@dataclass(frozen=True, slots=True)
class Form:
    """One completion route."""

    path: str
    """Below `/v1`, here and at the engine."""
    read: Callable[[Body], CallRequest]
    upstream: Callable[[CallRequest, str], Body]
    """What an engine that holds policies is asked, given the policy's name."""
    answer: Callable[[Mapping[str, Any]], Answer]
    chunks: Chunks
    chunk_object: str
    """`object` of a chunk."""

    def stream(self, request: CallRequest, shown: Body) -> list[bytes]:
        """The events of an answer as the agent sees it."""
        return stream_of(shown, self.chunks, kind=self.chunk_object, include_usage=request.include_usage)


CHAT = Form("/chat/completions", read_chat, chat_upstream, chat_answer, chat_chunks, "chat.completion.chunk")
TEXT = Form("/completions", read_completion, completion_upstream, completion_answer, text_chunks, "text_completion")
FORMS: Mapping[str, Form] = {form.path: form for form in (CHAT, TEXT)}
"""By path."""
