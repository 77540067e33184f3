"""What a gateway keeps of responses: continued by id, by conversation and by items, by their owner alone, bounded."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import BadRequest, NotFound
from ratchet.dialects.responses.answers import from_chat
from ratchet.dialects.responses.requests import ResponsesRequest, read, to_chat
from ratchet.dialects.responses.state import (
    HOLDERS,
    STATE_BYTES,
    History,
    ResponseState,
    continued_conversation,
    decode_state,
    encode_state,
    input_page,
    state_of,
)

OWNER = "support-team"


class Kept:
    """States by id; counts look-ups."""

    def __init__(self) -> None:
        self.states: dict[str, ResponseState] = {}
        self.looked: list[str] = []

    def expanded(self, request: ResponsesRequest) -> ResponsesRequest:
        history = History(request)
        while (needed := history.needed()) is not None:
            self.looked.append(needed)
            history.add(needed, self.states.get(needed))
        return history.expanded()

    def call(self, body: dict[str, Any], answer: str) -> dict[str, Any]:
        """Answer a request and keep it; its response."""
        request = self.expanded(read(body))
        message = {"role": "assistant", "content": answer}
        completion = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        response_id = f"resp_{len(self.states):04x}"
        response = from_chat(request.body, completion, response_id=response_id, created_at=0)
        state = state_of(request, response, owner=OWNER)
        encoded = encode_state(state)
        assert encoded is not None
        self.states[state.id] = decode_state(encoded)
        if request.conversation is not None:
            self.states[request.conversation] = continued_conversation(state, request.conversation)
        return response


def asked(text: str = "?", **members: Any) -> dict[str, Any]:
    return {"model": "support", "input": text, **members}


def contents(request: ResponsesRequest) -> list[Any]:
    return [message["content"] for message in to_chat(request)["messages"]]


@given(st.lists(st.integers(min_value=0, max_value=5), max_size=8))
def test_every_response_continues_the_history_that_it_names(parents: list[int]) -> None:
    kept, histories, ids = Kept(), list[list[str]](), list[str]()
    for number, parent in enumerate(parents):
        named = {"previous_response_id": ids[parent]} if parent < len(ids) else {}
        before = histories[parent] if named else []
        request = read(asked(f"q{number}", **named))
        assert contents(kept.expanded(request)) == [*before, f"q{number}"]
        ids.append(kept.call(asked(f"q{number}", **named), f"a{number}")["id"])
        histories.append([*before, f"q{number}", f"a{number}"])
    assert len(kept.looked) == 2 * sum(parent < number for number, parent in enumerate(parents))


def test_a_conversation_grows_by_every_response() -> None:
    kept = Kept()
    kept.states["conv_1"] = ResponseState("conv_1", OWNER, [{"role": "user", "content": "I am Ann."}])
    first = kept.call(asked("Hi.", conversation="conv_1"), "Hello Ann.")
    kept.call(asked("Who am I?", conversation={"id": "conv_1"}), "Ann.")
    request = read(asked("Sure?", conversation="conv_1"))
    assert contents(kept.expanded(request)) == [
        *("I am Ann.", "Hi.", "Hello Ann.", "Who am I?", "Ann.", "Sure?"),
    ]
    assert first["conversation"] == {"id": "conv_1"}


def test_items_of_a_long_run_are_resolved_with_one_look_up() -> None:
    kept = Kept()
    history: list[dict[str, Any]] = []
    for number in range(20):
        history.append({"role": "user", "content": f"q{number}"})
        kept.looked.clear()
        response = kept.call({"model": "support", "input": history}, f"a{number}")
        assert len(kept.looked) == (number > 0)
        history.append({"type": "item_reference", "id": response["output"][0]["id"]})
    request = read({"model": "support", "input": history})
    assert contents(kept.expanded(request))[-2:] == ["q19", "a19"]


def test_what_nobody_kept_is_not_found_in_the_apis_words() -> None:
    kept = Kept()
    for members, param, code in (
        ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "conv_x"}, "conversation", "conversation_not_found"),
    ):
        request = read(asked(**members))
        with pytest.raises(NotFound) as caught:
            kept.expanded(request)
        assert (caught.value.param, caught.value.code) == (param, code)
    request = read({"model": "support", "input": [{"id": "rs_0_1"}]})
    with pytest.raises(BadRequest) as refused:
        kept.expanded(request)
    assert (refused.value.param, refused.value.code) == ("input[0].id", "item_not_found")


def test_references_need_few_states_however_many_they_are() -> None:
    kept = Kept()
    items = [{"id": f"msg_0_{number}", "type": "message", "role": "user", "content": "x"} for number in range(20_000)]
    kept.states["resp_0"] = ResponseState("resp_0", OWNER, items, 0, {"id": "resp_0"})
    references = [{"type": "item_reference", "id": item["id"]} for item in items]
    assert len(contents(kept.expanded(read({"model": "support", "input": references})))) == 20_000
    assert kept.looked == ["resp_0"]


def test_items_of_too_many_responses_are_refused_before_a_look_up() -> None:
    kept = Kept()
    references = [{"type": "item_reference", "id": f"msg_{number}_0"} for number in range(6000)]
    with pytest.raises(BadRequest, match="more than 16 responses"):
        kept.expanded(read({"model": "support", "input": references}))
    assert len(kept.looked) == HOLDERS


def test_an_item_that_is_named_twice_is_refused() -> None:
    kept = Kept()
    item = {"type": "item_reference", "id": kept.call(asked(), "Hello.")["output"][0]["id"]}
    with pytest.raises(BadRequest, match="Duplicate item") as caught:
        kept.expanded(read({"model": "support", "input": [item, item]}))
    assert caught.value.param == "input[1].id"


def test_conversations_are_no_responses_and_responses_no_conversations() -> None:
    kept = Kept()
    response = kept.call(asked("Hi."), "Hello.")
    kept.states["conv_1"] = conversation = ResponseState("conv_1", OWNER, [])
    for members in ({"previous_response_id": "conv_1"}, {"conversation": response["id"]}):
        request = read(asked(**members))
        with pytest.raises(NotFound):
            kept.expanded(request)
    with pytest.raises(NotFound):
        conversation.shown()
    with pytest.raises(NotFound):
        input_page(conversation, after=None, limit=20, order="asc")


def test_a_kept_response_is_shown_as_it_was_answered() -> None:
    kept = Kept()
    first = kept.call(asked("Hi."), "Hello.")
    second = kept.call(asked("Again.", previous_response_id=first["id"]), "Hello again.")
    assert [kept.states[one["id"]].shown() for one in (first, second)] == [first, second]
    assert second["previous_response_id"] == first["id"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_input_items_come_in_pages(order: str) -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": str(number)} for number in range(45)]
    state = ResponseState("resp_1", OWNER, [*items, {"id": "msg_1_0"}], 45, {"id": "resp_1"})
    texts: list[str] = []
    after, more = None, True
    while more:
        page = input_page(state, after=after, limit=20, order=order)
        texts += [item["content"][0]["text"] for item in page["data"]]
        after, more = page["last_id"], page["has_more"]
    expected = [str(number) for number in range(45)]
    assert texts == (expected if order == "asc" else expected[::-1])


def test_pages_that_cannot_be_are_refused() -> None:
    state = ResponseState("resp_1", OWNER, [], 0, {"id": "resp_1"})
    assert input_page(state, after=None, limit=20, order="asc")["data"] == []
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_x"}):
        with pytest.raises(BadRequest) as caught:
            input_page(state, **{"after": None, "limit": 20, "order": "asc", **wrong})
        assert caught.value.param == next(iter(wrong))


def test_a_history_beyond_the_bound_is_not_kept() -> None:
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(10_000):
        inner["a"] = inner = {}
    assert encode_state(ResponseState("resp_1", OWNER, [deep], 1, {})) is None
    large = ResponseState("resp_1", OWNER, [{"role": "user", "content": "x" * STATE_BYTES}], 1, {})
    assert encode_state(large) is None


def test_integers_of_any_size_are_kept() -> None:
    item = {"role": "user", "content": "x", "bound": 99999999999999999999}
    state = ResponseState("resp_1", OWNER, [item], 1, {"id": "resp_1"})
    encoded = encode_state(state)
    assert encoded is not None
    assert decode_state(encoded) == state
