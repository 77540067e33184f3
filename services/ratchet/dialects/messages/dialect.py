"""The Messages API as a dialect: passed on where an upstream has it, else translated to chat and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ratchet.dialects.api_dialect import CHAT, ApiDialect, Translation
from ratchet.dialects.messages.answers import from_chat, message_of
from ratchet.dialects.messages.reading import MessagesRequest, read, to_chat
from ratchet.dialects.messages.streams import MessageStream, fold_message, replay_message, sse
from ratchet.dialects.requests import Body, CallRequest, Fields, read_call, value_of
from ratchet.dialects.streams import Problem

COUNT_PATH = "/messages/count_tokens"
"""Below `/v1`, here and at servers of the API."""
VERSION = "2023-06-01"
"""The API's version, for servers that want one where the agent names none."""
_OURS = b"anthropic-"
"""Begins the headers that only Anthropic's API knows."""
_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""By status; any other is `invalid_request_error` below 500, and `api_error` from there on."""
TOO_LONG = "prompt is too long: "
"""Begins Anthropic's error for a prompt that exceeds the context: agents look for it, and then compact."""


class MessageEnvelope(msgspec.Struct):
    """A message as far as the gateway relies on its shape."""

    content: list[dict[str, Any]]

    @property
    def choices(self) -> Sequence[object]:
        """A message is one answer."""
        return (self,)

    def messages(self) -> None:
        """See `AnswerEnvelope`."""


@dataclass(slots=True)
class _Translator:
    """Shows the chunks of a chat as the events of a message. An error of the engine ends it."""

    stream: MessageStream
    failed: bool = False

    def feed(self, chunk: Body) -> list[bytes]:
        """The events that a chunk adds."""
        error: Any = chunk.get("error")
        if not error:
            return [sse(event) for event in self.stream.feed(chunk)]
        self.failed = True
        message = cast("Body", error).get("message") if isinstance(error, dict) else error
        return [sse(error_body(502, str(message or "the engine failed"), code="engine_failed"))]

    def finish(self) -> list[bytes]:
        """The events that end the message."""
        return [] if self.failed else [sse(event) for event in self.stream.finish()]

    def fail(self, problem: Problem) -> list[bytes]:
        """The event that says why the message breaks off."""
        return [error_event(problem)]


def read_call_of(fields: Fields, *, counting: bool = False) -> CallRequest:
    """Reads a call; `counting`: of its tokens only. Raises `BadRequest`."""
    asked = read({name: value_of(fields, name) for name in fields}, counting=counting)
    call = read_call(fields, asked.chat["messages"])
    return msgspec.structs.replace(call, as_chat=asked, choices=1, adds_usage=False)


def asked_of(call: CallRequest) -> MessagesRequest:
    """The request of a call of this API."""
    assert isinstance(call.as_chat, MessagesRequest)  # noqa: S101 - `read_call_of` has made the call
    return call.as_chat


def chat_call(call: CallRequest) -> CallRequest:
    """The call as a chat. Raises `BadRequest` for what a chat cannot say."""
    chat = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in to_chat(asked_of(call)).items()}
    headers = [(name, value) for name, value in call.headers if not name.startswith(_OURS)]
    return msgspec.structs.replace(read_call(chat, call.messages), headers=headers)


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None, request_id: str | None = None
) -> Body:
    """The error as JSON; its code and the member at fault are details, as Anthropic's own codes are."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    if code == "context_length_exceeded" and not message.startswith(TOO_LONG):
        message = TOO_LONG + message
    error: Body = {"type": kind, "message": message}
    if details := {name: value for name, value in (("error_code", code), ("param", param)) if value}:
        error["details"] = details
    return {"type": "error", "error": error, "request_id": request_id}


def error_event(problem: Problem) -> bytes:
    """The event of an error within a stream."""
    error = problem.error
    return sse(error_body(problem.status, error.message, code=error.code, param=error.param))


def _ends(event: bytes) -> bool:
    """A short event: the text of an answer may hold the words, and is not decoded for them."""
    return len(event) < 100 and b'"message_stop"' in event


MESSAGES = ApiDialect(
    name="messages",
    path="/messages",
    read=read_call_of,
    answer=message_of,
    fold=fold_message,
    begins=lambda event: event.get("type") in {"content_block_start", "message_delta"},
    ends=_ends,
    replay=replay_message,
    envelope=MessageEnvelope,
    translation=Translation(
        to=CHAT,
        request=chat_call,
        answer=lambda call, answer: msgspec.json.encode(from_chat(answer, asked_of(call).stops)),
        stream=lambda call: _Translator(MessageStream(asked_of(call).stops)),
    ),
    error_event=error_event,
)
