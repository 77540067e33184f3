"""The official client on responses that are made of chat completions: create, stream, parse, tools, state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest

from tests.support.responses_app import ResponsesApp, serving_responses

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "description": "Finds an order.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    "strict": False,
}
CALLS: list[dict[str, Any]] = [
    {"id": "call_a", "type": "function", "function": {"name": "look_up", "arguments": '{"order_id": "K47"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "look_up", "arguments": '{"order_id": "K48"}'}},
]


class Verdict(pydantic.BaseModel):
    late: bool
    days: int


@asynccontextmanager
async def client_of(app: ResponsesApp) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving_responses(app) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none") as client,
    ):
        yield client


def strictly(response: Any) -> Any:
    """The response, every member of which has the type that the client's own models say."""
    return type(response).model_validate(response.model_dump(by_alias=True, warnings="error"), strict=False)


async def test_a_text_is_answered_with_a_complete_response() -> None:
    app = ResponsesApp([{"content": "It arrives today.", "reasoning_content": "The user asks."}])
    async with client_of(app) as client:
        response = await client.responses.create(
            model="support", instructions="Be brief.", input="Where is it?", metadata={"run": "7"}, temperature=0.5
        )
    strictly(response)
    assert response.output_text == "It arrives today."
    assert (response.status, response.model, response.metadata) == ("completed", "support.v1", {"run": "7"})
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert response.instructions == "Be brief."
    assert response.usage is not None
    assert response.usage.total_tokens == 13
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    assert response.usage.input_tokens_details.cached_tokens == 3
    assert app.asked[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Where is it?"},
    ]
    assert app.asked[0]["temperature"] == 0.5


async def test_tools_are_called_side_by_side_and_their_results_come_back() -> None:
    app = ResponsesApp([{"content": None, "tool_calls": CALLS}, {"content": "Both arrive today."}])
    async with client_of(app) as client:
        items: list[Any] = [{"role": "user", "content": "Where are they?"}]
        first = await client.responses.create(model="support", input=items, tools=[TOOL])  # type: ignore[list-item]
        calls = [item for item in first.output if item.type == "function_call"]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": "today"} for call in calls]
        second = await client.responses.create(model="support", input=items, tools=[TOOL])  # type: ignore[list-item]
    strictly(first)
    assert [(call.call_id, call.arguments) for call in calls] == [
        ("call_a", '{"order_id": "K47"}'),
        ("call_b", '{"order_id": "K48"}'),
    ]
    assert second.output_text == "Both arrive today."
    assert app.asked[1]["messages"] == [
        {"role": "user", "content": "Where are they?"},
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "call_a", "content": "today"},
        {"role": "tool", "tool_call_id": "call_b", "content": "today"},
    ]


async def test_structured_output_is_parsed() -> None:
    app = ResponsesApp([{"content": '{"late": true, "days": 2}'}])
    async with client_of(app) as client:
        response = await client.responses.parse(model="support", input="Late?", text_format=Verdict)
    assert response.output_parsed == Verdict(late=True, days=2)
    asked = app.asked[0]["response_format"]
    assert (asked["type"], asked["json_schema"]["name"], asked["json_schema"]["strict"]) == (
        "json_schema",
        "Verdict",
        True,
    )


async def test_the_client_puts_a_stream_together_to_what_it_gets_without_one() -> None:
    message = {"reasoning_content": "The user asks.", "content": "It arrives today.", "tool_calls": CALLS}
    app = ResponsesApp([message, message])
    members: dict[str, Any] = {"model": "support", "input": "Where?", "tools": [TOOL]}
    async with client_of(app) as client:
        async with client.responses.stream(**members) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        whole = await client.responses.create(**members)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "It arrives today."
    assert [event.type for event in events[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    different = {"id", "output"}
    assert whole.model_dump(exclude=different) == streamed.model_dump(
        include=whole.model_dump(exclude=different).keys()
    )
    assert [item.type for item in streamed.output] == [item.type for item in whole.output]


async def test_a_stream_is_parsed_into_the_agents_type() -> None:
    app = ResponsesApp([{"content": '{"late": false, "days": 0}'}])
    async with (
        client_of(app) as client,
        client.responses.stream(model="support", input="Late?", text_format=Verdict) as stream,
    ):
        final = await stream.get_final_response()
    assert final.output_parsed == Verdict(late=False, days=0)


async def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    app = ResponsesApp([{"content": "It arr"}, {"content": "It arr"}], finish_reason="length")
    async with client_of(app) as client:
        response = await client.responses.create(model="support", input="Where?", max_output_tokens=16)
        events = [event async for event in await client.responses.create(model="support", input="Where?", stream=True)]
    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"  # type: ignore[union-attr]
    assert app.asked[0]["max_completion_tokens"] == 16
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == "It arr"


async def test_a_refusal_and_log_probabilities_come_through() -> None:
    app = ResponsesApp([{"content": None, "refusal": "I cannot."}, {"content": "Yes."}])
    async with client_of(app) as client:
        refused = await client.responses.create(model="support", input="Do it.")
        sure = await client.responses.create(model="support", input="Sure?", include=["message.output_text.logprobs"])
    assert refused.output[0].content[0].refusal == "I cannot."  # type: ignore[union-attr]
    strictly(sure)
    logprobs = sure.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert logprobs is not None
    assert [entry.token for entry in logprobs] == list("Yes.")


async def test_an_error_in_a_stream_comes_with_the_response_that_failed() -> None:
    app = ResponsesApp([{"content": "It arrives today."}], breaks=True)
    async with client_of(app) as client:
        events = [event async for event in await client.responses.create(model="support", input="Where?", stream=True)]
    error, failed = events[-2:]
    assert error.type == "error"
    assert (error.code, error.message) == ("engine_failed", "the engine broke")
    assert failed.type == "response.failed"
    assert failed.response.error is not None
    assert (failed.response.status, failed.response.error.code) == ("failed", "server_error")


async def test_a_response_is_continued_by_its_id_read_listed_and_deleted() -> None:
    app = ResponsesApp([{"content": "Today."}, {"content": "At noon."}, {"content": "Yes."}])
    async with client_of(app) as client:
        first = await client.responses.create(model="support", instructions="Be brief.", input="When?")
        second = await client.responses.create(model="support", input="At?", previous_response_id=first.id)
        read = await client.responses.retrieve(second.id)
        listed = [item async for item in client.responses.input_items.list(second.id)]
        await client.responses.delete(first.id)
        third = await client.responses.create(model="support", input="Sure?", previous_response_id=second.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="support", input="?", previous_response_id=first.id)
    assert (read.output_text, read.previous_response_id, third.output_text) == ("At noon.", first.id, "Yes.")
    assert [item.type for item in listed] == ["message", "message", "message"]
    assert len({item.id for item in listed}) == 3
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert [message["content"] for message in app.asked[2]["messages"]] == [
        "When?",
        "Today.",
        "At?",
        "At noon.",
        "Sure?",
    ]


async def test_what_is_not_stored_cannot_be_continued() -> None:
    app = ResponsesApp([{"content": "Today."}])
    async with client_of(app) as client:
        first = await client.responses.create(model="support", input="When?", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="support", input="?", previous_response_id=first.id)


async def test_items_are_referred_to_by_their_ids() -> None:
    app = ResponsesApp([{"content": None, "tool_calls": CALLS[:1]}, {"content": "Today."}, {"content": "Yes."}])
    asked: list[Any] = [{"role": "user", "content": "Where?"}]
    async with client_of(app) as client:
        first = await client.responses.create(model="support", input=asked, tools=[TOOL])  # type: ignore[list-item]
        asked += [{"type": "item_reference", "id": first.output[0].id}]
        asked += [{"type": "function_call_output", "call_id": "call_a", "output": "here"}]
        second = await client.responses.create(model="support", input=asked)
        asked += [{"type": "item_reference", "id": second.output[0].id}, {"role": "user", "content": "Sure?"}]
        await client.responses.create(model="support", input=asked)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="support", input=[{"type": "item_reference", "id": "msg_unknown_0"}])
    assert [message["role"] for message in app.asked[2]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert app.asked[2]["messages"][1]["tool_calls"] == CALLS[:1]
    assert caught.value.param == "input[0].id"


async def test_custom_tools_become_functions_with_one_text() -> None:
    call = {"id": "call_c", "type": "function", "function": {"name": "run", "arguments": '{"input": "ls -l"}'}}
    app = ResponsesApp([{"content": None, "tool_calls": [call]}, {"content": None, "tool_calls": [call]}])
    members: dict[str, Any] = {"model": "support", "input": "List.", "tools": [{"type": "custom", "name": "run"}]}
    async with client_of(app) as client:
        response = await client.responses.create(**members)
        events = [event async for event in await client.responses.create(stream=True, **members)]
    called = response.output[0]
    assert called.type == "custom_tool_call"
    assert (called.name, called.input, called.call_id) == ("run", "ls -l", "call_c")
    assert [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"] == ["ls -l"]
    assert app.asked[0]["tools"][0]["function"]["parameters"]["required"] == ["input"]


async def test_a_providers_tool_is_refused_with_its_place() -> None:
    async with client_of(ResponsesApp([])) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="support", input="?", tools=[TOOL, {"type": "web_search"}])  # type: ignore[list-item]
    assert (caught.value.param, caught.value.code) == ("tools[1].type", "unsupported_parameter")
