"""The Responses API as one of the APIs that answer calls: for engines that speak it, and translated for all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ratchet.core.errors import BadRequest
from ratchet.dialects.answers import Answer
from ratchet.dialects.api_dialect import CHAT, ApiDialect, Translation, chat_answer
from ratchet.dialects.requests import Body, CallRequest, Fields, read_call, value_of
from ratchet.dialects.responses.answers import ResponseStream, from_chat
from ratchet.dialects.responses.native import failure_of, fold_response, to_chat_answer
from ratchet.dialects.responses.requests import ResponsesRequest, read, responses_param, to_chat

_ENDS = (b"response.completed", b"response.incomplete", b"response.failed")
_PRELUDE = frozenset({"response.created", "response.queued", "response.in_progress"})
_LONG = frozenset({"messages", "tools"})


def read_responses(fields: Fields) -> CallRequest:
    """Raises `BadRequest`, whose param is the member of this API."""
    return call_of(read({name: value_of(fields, name) for name in fields}), fields)


def call_of(asked: ResponsesRequest, fields: Fields) -> CallRequest:
    """The call, which goes to an upstream that has this API as `fields`. Raises `BadRequest`."""
    try:
        call = read_call(
            _fields(asked.chat, but=_LONG), asked.chat["messages"], wants_logprobs=bool(asked.chat.get("logprobs"))
        )
    except BadRequest as error:
        raise BadRequest(str(error), code=error.code, param=responses_param(error.param)) from error
    if call.choices != 1:
        raise BadRequest("a response is one answer", param="n")
    return msgspec.structs.replace(call, fields=fields, as_chat=asked, adds_usage=False)


def raw_member(name: str, value: object) -> msgspec.Raw:
    """A member for an engine. Raises `BadRequest` for one that could be read and is too deep to be written again."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except RecursionError as error:
        raise BadRequest(f"{name} is nested too deep", param=responses_param(name)) from error


def asked_of(call: CallRequest) -> ResponsesRequest:
    """The request of a call of this API."""
    return cast("ResponsesRequest", call.as_chat)


def chat_call(call: CallRequest) -> CallRequest:
    """The call as a chat. Raises `BadRequest` for what a chat cannot express, `NotFound` for an unknown history."""
    chat = to_chat(asked_of(call))
    return msgspec.structs.replace(call, fields=_fields(chat), as_chat=None, include_usage=call.stream, adds_usage=True)


class _Typed(msgspec.Struct):
    """An item of the output, or an event."""

    type: str


class ResponseEnvelope(msgspec.Struct):
    """A response as far as the gateway relies on its shape."""

    output: list[_Typed]

    @property
    def choices(self) -> Sequence[object]:
        """A response is one answer."""
        return (self,)

    def messages(self) -> None:
        """See `AnswerEnvelope`."""


def response_answer(body: Mapping[str, Any], number: int = 0) -> Answer:
    """An upstream's own response for the turn. Raises `ValueError` for any other JSON."""
    failure = failure_of(body)
    if failure is not None:
        return Answer(message=None, error=failure)
    return chat_answer(to_chat_answer(body), number)


def response_ends(data: bytes) -> bool:
    """Whether an event's data is the last one."""
    if not any(kind in data for kind in _ENDS):
        return False
    return msgspec.json.decode(data, type=_Typed).type.encode() in _ENDS


def replay_response(answer: Body) -> list[Body]:
    """A whole response as events, for an agent that asked an upstream to stream which did not."""
    created: Body = {"type": "response.created", "response": {**answer, "status": "in_progress", "output": []}}
    events = [created]
    for place, item in enumerate(cast("list[Body]", answer["output"])):
        kinds = ("response.output_item.added", "response.output_item.done")
        events += [{"type": kind, "output_index": place, "item": item} for kind in kinds]
    events.append({"type": f"response.{answer.get('status', 'completed')}", "response": answer})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _fields(chat: Body, but: frozenset[str] = frozenset()) -> Fields:
    return {name: raw_member(name, value) for name, value in chat.items() if name not in but}


RESPONSES = ApiDialect(
    name="responses",
    path="/responses",
    read=read_responses,
    answer=response_answer,
    fold=fold_response,
    begins=lambda event: event.get("type") not in _PRELUDE,
    ends=response_ends,
    replay=replay_response,
    envelope=ResponseEnvelope,
    translation=Translation(
        to=CHAT,
        request=chat_call,
        answer=lambda call, answer: msgspec.json.encode(
            from_chat(asked_of(call).body, answer, response_id=call.answer_id, created_at=call.at)
        ),
        stream=lambda call: ResponseStream(asked_of(call).body, response_id=call.answer_id, created_at=call.at),
    ),
)
