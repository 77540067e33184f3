"""What a gateway keeps of responses, so that a later request can continue them: `previous_response_id`,
`conversation`, and references to single items.

A value holds the whole history that its response ended, so that continuing takes one look-up, also after earlier
responses of the chain were deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ratchet.core.contract import JsonObject
from ratchet.core.errors import BadRequest, NotFound
from ratchet.dialects.responses.answers import RESPONSE_PREFIX
from ratchet.dialects.responses.items import input_items, is_reference
from ratchet.dialects.responses.requests import ResponsesRequest, read

STATE_BYTES = 4 * 1024 * 1024
"""Largest value that is kept, encoded: a broker takes messages of 8 MiB, and images make histories large."""
HOLDERS = 16
"""Most responses whose items one request may refer to: together they hold no more than a body may."""
PAGE, LONGEST_PAGE = 20, 100
"""Items of a page of `input_items`, by default and at most."""
_ITEM_PREFIXES = frozenset({"msg", "rs", "fc", "ctc"})


class ResponseState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A response that may be continued, or a conversation."""

    id: str
    owner: str
    """Who may continue, read and delete it: for all others it does not exist."""
    items: list[JsonObject]
    """Its input, earlier responses included, then its output."""
    inputs: int = 0
    """How many of the items are input."""
    response: JsonObject | None = None
    """Without `output`; None for a conversation."""

    def shown(self) -> JsonObject:
        """The response as GET shows it. Raises `NotFound` for a conversation."""
        if self.response is None:
            raise not_kept(self.id)
        return {**self.response, "output": self.items[self.inputs :]}


def state_of(request: ResponsesRequest, response: JsonObject, *, owner: str) -> ResponseState:
    """What to keep of an answered request, whose `body` was expanded."""
    before, output = input_items(request.body), cast("list[JsonObject]", response["output"])
    rest = {name: value for name, value in response.items() if name != "output"}
    return ResponseState(response["id"], owner, [*before, *output], len(before), rest)


def continued_conversation(state: ResponseState, conversation: str) -> ResponseState:
    """What to keep of the conversation that a response continued."""
    return ResponseState(conversation, state.owner, state.items)


def encode_state(state: ResponseState) -> bytes | None:
    """The value for the store; None when it is larger than `STATE_BYTES`, or nested without end."""
    try:
        encoded = msgspec.json.encode(state)
    except RecursionError:
        return None
    return encoded if len(encoded) <= STATE_BYTES else None


def decode_state(value: bytes) -> ResponseState:
    """The inverse. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(value, type=ResponseState)


class History:
    """What a request continues, found state by state.

    References to items are resolved from the latest one on: a later response holds the items of the earlier ones.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        self._request = request
        self._states: dict[str, ResponseState | None] = {}
        self._items: dict[str, JsonObject] = {}
        """Of all states, by id; of an item that several states hold, any: they are equal."""
        self._references = [item["id"] for item in input_items(request.body) if is_reference(item)]
        """Those that may still need a state, the latest last."""
        self._continues = bool(self._references)

    def needed(self) -> str | None:
        """The id of the state that is needed next; None when the history is complete.

        Raises `BadRequest` when the items come from more than `HOLDERS` responses.
        """
        for named in (self._request.previous_response_id, self._request.conversation):
            if named is not None and named not in self._states:
                return named
        while self._references:
            item_id = self._references[-1]
            holder = None if item_id in self._items else _holder_of(item_id)
            if holder is not None and holder not in self._states:
                if len(self._states) >= HOLDERS:
                    message = f"input refers to items of more than {HOLDERS} responses: send the items themselves"
                    raise BadRequest(message, param="input", code="too_many_responses")
                return holder
            self._references.pop()
        return None

    def add(self, state_id: str, state: ResponseState | None) -> None:
        """The state that was needed; None when it is not kept for the caller."""
        self._states[state_id] = state
        for item in state.items if state is not None else ():
            if isinstance(item.get("id"), str):
                self._items[item["id"]] = item

    def expanded(self) -> ResponsesRequest:
        """The request with the whole history in `input`; it still names what it continues, as its response repeats.

        Raises `NotFound` for a response or conversation that is not kept, and `BadRequest` for an item that is not
        known, or is referred to twice.
        """
        before = self._before()
        if not before and not self._continues:
            return self._request
        given: list[JsonObject] = []
        seen: set[str] = set()
        for index, item in enumerate(input_items(self._request.body)):
            given.append(self._resolved(item, index, seen) if is_reference(item) else item)
        return read({**self._request.body, "input": [*before, *given]})

    def _before(self) -> Sequence[JsonObject]:
        request = self._request
        if request.previous_response_id is not None:
            state = self._states[request.previous_response_id]
            if state is None or state.response is None:
                message = f"Previous response with id '{request.previous_response_id}' not found."
                raise NotFound(message, param="previous_response_id", code="previous_response_not_found")
            return state.items
        if request.conversation is not None:
            state = self._states[request.conversation]
            if state is None or state.response is not None:
                message = f"Conversation with id '{request.conversation}' not found."
                raise NotFound(message, param="conversation", code="conversation_not_found")
            return state.items
        return ()

    def _resolved(self, item: JsonObject, index: int, seen: set[str]) -> JsonObject:
        """The item that a reference names. Twice the same one is refused, as OpenAI does: items may be large."""
        item_id: str = item["id"]
        known = self._items.get(item_id)
        if known is None:
            message = f"Item with id '{item_id}' not found: it was not stored; send the item itself"
            raise BadRequest(message, param=f"input[{index}].id", code="item_not_found")
        if item_id in seen:
            raise BadRequest(f"Duplicate item found with id '{item_id}'.", param=f"input[{index}].id")
        seen.add(item_id)
        return known


def input_page(state: ResponseState, *, after: str | None, limit: int, order: str) -> JsonObject:
    """A page of `GET /v1/responses/{id}/input_items`. Raises `BadRequest` or `NotFound`."""
    if not 1 <= limit <= LONGEST_PAGE:
        raise BadRequest(f"limit must be from 1 to {LONGEST_PAGE}", param="limit")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    if state.response is None:
        raise not_kept(state.id)
    key = state.id.partition("_")[2]
    items = [_listed(item, f"msg_{key}_input_{place}") for place, item in enumerate(state.items[: state.inputs])]
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise BadRequest("after names no item of this response", param="after")
        start = places[0] + 1
    page = ordered[start : start + limit]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    more = len(ordered) > start + limit
    return {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": more}


def not_kept(response_id: str) -> NotFound:
    """The error for a response that is read, listed or deleted, and is not kept for its caller."""
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id", code="response_not_found")


def _holder_of(item_id: str) -> str | None:
    """The response whose output an item of the gateway's is; None for ids of others."""
    prefix, _, rest = item_id.partition("_")
    key, _, place = rest.rpartition("_")
    return f"{RESPONSE_PREFIX}{key}" if prefix in _ITEM_PREFIXES and key and place.isdecimal() else None


def _listed(item: JsonObject, item_id: str) -> JsonObject:
    """An input item as the API lists it: with an id, a type, and content as parts."""
    listed: JsonObject = {"id": item_id, "type": "message", **item}
    content: Any = listed.get("content")
    if listed["type"] == "message" and isinstance(content, str):
        part = "output_text" if listed.get("role") == "assistant" else "input_text"
        listed["content"] = [{"type": part, "text": content, **({"annotations": []} if part == "output_text" else {})}]
    return listed
