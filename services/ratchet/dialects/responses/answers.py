"""A chat completion as a response: the whole object, or the events of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.dialects.requests import Body
from ratchet.dialects.responses.chat_answers import ChatAnswer, read_answer, response_usage
from ratchet.dialects.responses.items import compacts
from ratchet.dialects.responses.output import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    INCOMPLETE_REASONS,
    Compacted,
    Output,
)
from ratchet.dialects.responses.requests import wants_logprobs
from ratchet.dialects.responses.tools import functions
from ratchet.dialects.streams import Problem

RESPONSE_PREFIX = "resp_"
"""Begins the id of a response. Ids of its items hold what follows it, so that an item names its response."""
_ECHOED: JsonObject = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
}
"""Members of a request that its response repeats -> their value where the request has none."""


def from_chat(body: Body, answer: Any, *, response_id: str, created_at: int) -> JsonObject:
    """The response to a (checked) request, given an engine's chat completion; `Any`: JSON of another process.

    `created_at`: seconds since 1970. Raises `ValueError` when the answer is no chat completion.
    """
    made = _Response(body, response_id, created_at)
    made.take(read_answer(answer))
    made.output.finish()
    return made.ended()


class ResponseStream:
    """The events of a streamed answer, encoded, from the chunks of a chat completion."""

    def __init__(self, body: Body, *, response_id: str, created_at: int) -> None:
        """`body`: the (checked) request. `created_at`: seconds since 1970."""
        self._made = _Response(body, response_id, created_at)
        self._number = 0
        self._began = False
        self.response: JsonObject | None = None
        """The response, once the stream has ended."""

    def feed(self, chunk: Any) -> list[bytes]:
        """The events of a chunk; `Any`: JSON of another process. Raises `ValueError` when it is no chunk."""
        if self.response is not None:
            return []
        answer = read_answer(chunk)
        self._made.note(answer)
        begun = self._begun()
        return [*begun, *(self._event(event) for event in self._made.take(answer))]

    def finish(self) -> list[bytes]:
        """The last events of an answer that is whole. The Responses API has no `[DONE]`."""
        if self.response is not None:
            return []
        events = [*self._begun(), *(self._event(event) for event in self._made.output.finish())]
        self.response = self._made.ended()
        return [*events, self._event({"type": f"response.{self.response['status']}", "response": self.response})]

    def fail(self, problem: Problem) -> list[bytes]:
        """The last events of an answer that an error cut off: the error, then what the response became."""
        if self.response is not None:
            return []
        events, message = self._begun(), problem.error.message
        events.append(self._event({"type": "error", "code": problem.error.code, "message": message, "param": None}))
        self.response = self._made.failed(message, problem.status)
        return [*events, self._event({"type": "response.failed", "response": self.response})]

    def _begun(self) -> list[bytes]:
        if self._began:
            return []
        self._began = True
        response = self._made.in_progress()
        kinds = ("response.created", "response.in_progress")
        return [self._event({"type": kind, "response": response}) for kind in kinds]

    def _event(self, event: JsonObject) -> bytes:
        number, self._number = self._number, self._number + 1
        kind: str = event["type"]
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({**event, "sequence_number": number}))


class _Response:
    def __init__(self, body: Body, response_id: str, created_at: int) -> None:
        self.output: Output | Compacted
        if compacts(body):
            self.output = Compacted(response_id)
        else:
            self.output = Output(response_id, offered=functions(body), logprobs=wants_logprobs(body))
        self._usage: JsonObject | None = None
        self._members: JsonObject = {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "model": body.get("model"),
            **_echo(body),
        }

    def note(self, answer: ChatAnswer) -> None:
        """Keep what an answer, or each chunk, says of itself."""
        if answer.model:
            self._members["model"] = answer.model
        if answer.service_tier:
            self._members["service_tier"] = answer.service_tier
        self._usage = response_usage(answer.usage) or self._usage

    def take(self, answer: ChatAnswer) -> list[JsonObject]:
        """Take in the first choice; the events that tell of it."""
        self.note(answer)
        first = next((choice for choice in answer.choices if choice.index == 0), None)
        return self.output.add(first) if first is not None else []

    def in_progress(self) -> JsonObject:
        return self._shown(IN_PROGRESS, output=[], usage=None)

    def ended(self) -> JsonObject:
        reason = INCOMPLETE_REASONS.get(self.output.finish_reason)
        if reason is not None:
            return self._shown(INCOMPLETE, incomplete_details={"reason": reason})
        return self._shown(COMPLETED)

    def failed(self, message: str, status: int) -> JsonObject:
        code = "rate_limit_exceeded" if status == 429 else "invalid_prompt" if status < 500 else "server_error"
        return self._shown("failed", error={"code": code, "message": message})

    def _shown(self, status: str, **members: object) -> JsonObject:
        absent = {"error": None, "incomplete_details": None}
        mutable = {"output": self.output.items, "usage": self._usage}
        return {**self._members, "status": status, **absent, **mutable, **members}


def _echo(body: Body) -> JsonObject:
    """The members of a response that repeat its request, with what the gateway made of them."""
    given = {name: value for name in _ECHOED if (value := body.get(name)) is not None}
    text: JsonObject = body.get("text") or {}
    reasoning: JsonObject = body.get("reasoning") or {}
    conversation = body.get("conversation")
    return {
        **_ECHOED,
        **given,
        "background": False,
        "conversation": {"id": conversation} if isinstance(conversation, str) else conversation,
        "metadata": body.get("metadata") or {},
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": body.get("service_tier") or "default",
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        # Only a tool that asks for it is strict.
        "tools": [
            {**tool, "parameters": tool.get("parameters"), "strict": bool(tool.get("strict"))}
            if tool.get("type") == "function"
            else tool
            for tool in body.get("tools") or ()
        ],
        "truncation": "disabled",
    }
