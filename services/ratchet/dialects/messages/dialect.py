"""The Messages API as a dialect: passed on where an upstream has it, else translated to chat and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ratchet.dialects.api_dialect import CHAT, ApiDialect, Translation
from ratchet.dialects.messages.answers import from_chat, message_of
from ratchet.dialects.messages.reading import MessagesRequest, read, to_chat
from ratchet.dialects.messages.streams import MessageStream, error_event, fold_message, replay_message
from ratchet.dialects.requests import CallRequest, Fields, read_call, value_of

COUNT_PATH = "/messages/count_tokens"
"""Below `/v1`, here and at servers of the API."""
VERSION = "2023-06-01"
"""The API's version, for servers that want one where the agent names none."""
_OURS = b"anthropic-"
"""Begins the headers that only Anthropic's API knows."""


class MessageEnvelope(msgspec.Struct):
    """A message as far as the gateway relies on its shape."""

    content: list[dict[str, Any]]

    @property
    def choices(self) -> Sequence[object]:
        """A message is one answer."""
        return (self,)

    def messages(self) -> None:
        """See `AnswerEnvelope`."""


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


MESSAGES = ApiDialect(
    name="messages",
    path="/messages",
    read=read_call_of,
    answer=message_of,
    fold=fold_message,
    begins=lambda event: event.get("type") in {"content_block_start", "message_delta"},
    # A short event: the text of an answer may hold the words, and is not decoded for them.
    ends=lambda event: len(event) < 100 and b'"message_stop"' in event,
    replay=replay_message,
    envelope=MessageEnvelope,
    translation=Translation(
        to=CHAT,
        request=chat_call,
        answer=lambda call, answer: msgspec.json.encode(from_chat(answer, asked_of(call).stops)),
        stream=lambda call: MessageStream(asked_of(call).stops),
    ),
    error_event=error_event,
)
