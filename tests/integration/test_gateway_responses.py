"""The Responses API through the gateway: a policy's chat behind it, or an upstream that has it; the same turns."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.core.contract import Turn
from tests.support.fake_engine import FakeProvider, providing, tool_call
from tests.support.gateway_scene import ROLE, scene, version
from tests.support.responses_app import ResponsesApp, serving_responses
from tests.support.servers import Broker, RunningServer

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
}
CHAT_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": TOOL["parameters"]}}
KEY_VARIABLE = "RATCHET_TEST_PROVIDER_KEY"
ASKED: list[Any] = [{"role": "user", "content": "Where is it?"}]
CALLED = [tool_call("call_a")]
OF_THE_CALL = {"turn_id", "trajectory_id", "timestamp", "request_digest", "latency_ms", "first_token_ms", "api"}
"""Members of a turn in which two calls differ that ask and answer the same."""


def content(turn: Turn) -> dict[str, Any]:
    """What a turn records of question and answer."""
    return {name: getattr(turn, name) for name in turn.__struct_fields__ if name not in OF_THE_CALL}


def an_id() -> dict[str, str]:
    return {"x-ratchet-trajectory": str(uuid.uuid4())}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_with_tools_is_captured_as_a_chat_agents(nats: Broker, tmp_path: Path, stream: bool) -> None:
    async with scene(nats, tmp_path) as here:
        client, headers = here.client(), an_id()
        here.engine.tool_calls = CALLED
        items = list(ASKED)
        options: dict[str, Any] = {"model": ROLE, "instructions": "Be brief.", "tools": [TOOL], "top_p": 1}
        for _ in range(2):
            if stream:
                async with client.responses.stream(input=items, extra_headers=headers, **options) as events:
                    response = await events.get_final_response()
            else:
                response = await client.responses.create(input=items, extra_headers=headers, **options)
            items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            items += [{"type": "function_call_output", "call_id": "call_a", "output": "today"}]
            here.engine.tool_calls = None
        assert response.output_text == here.engine.answer
        assert response.model == version(1).name
        headers = an_id()
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, *ASKED]
        here.engine.tool_calls = CALLED
        chat: dict[str, Any] = {"model": ROLE, "tools": [CHAT_TOOL], "top_p": 1, "stream": stream}
        for _ in range(2):
            answer = await client.chat.completions.create(messages=messages, extra_headers=headers, **chat)
            if stream:
                assert [chunk async for chunk in answer]
            messages.append({"role": "assistant", "content": None, "tool_calls": CALLED})
            messages.append({"role": "tool", "tool_call_id": "call_a", "content": "today"})
            here.engine.tool_calls = None
        turns = await here.published(Turn, 4)
        by_api = {api: [turn for turn in turns if turn.api == api] for api in ("responses", "chat")}
        ids = {turn.turn_id: number for several in by_api.values() for number, turn in enumerate(several)}
        first, second = (
            [{**content(turn), "parent_turn_id": ids.get(turn.parent_turn_id or "")} for turn in several]
            for several in (by_api["responses"], by_api["chat"])
        )
        assert first == second
        assert [turn.index for turn in by_api["responses"]] == [0, 1]
        assert by_api["responses"][1].parent_turn_id == by_api["responses"][0].turn_id
        assert by_api["responses"][1].trainable.ok


async def test_a_stream_begins_with_the_response_and_ends_with_it_whole(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        raw = await here.client().responses.with_raw_response.create(model=ROLE, input="Where?", stream=True)
        events = [event async for event in raw.parse()]
        (turn,) = await here.published(Turn, 1)
    assert raw.headers["x-ratchet-turn"] == turn.turn_id
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 2
    assert "".join(deltas) == here.engine.answer == turn.response["content"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage is not None
    assert events[-1].response.usage.output_tokens == len(here.engine.answer)


async def test_response_is_continued_read_and_deleted_and_its_turns_hold_history(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        client, headers = here.client(), an_id()
        first = await client.responses.create(model=ROLE, input="When?", extra_headers=headers)
        async with client.responses.stream(
            model=ROLE, input="At noon?", previous_response_id=first.id, extra_headers=headers
        ) as events:
            second = await events.get_final_response()
        item: Any = {"type": "item_reference", "id": second.output[0].id}
        await client.responses.create(model=ROLE, input=[*ASKED, item, *ASKED], extra_headers=headers)
        turns = await here.published(Turn, 3)
        read = await client.responses.retrieve(second.id)
        listed = [one async for one in client.responses.input_items.list(second.id, order="asc")]
        await client.responses.delete(second.id)
        for lost in (client.responses.retrieve(second.id), client.responses.delete(second.id)):
            with pytest.raises(openai.NotFoundError):
                await lost
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model=ROLE, input="?", previous_response_id=second.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert read.output_text == second.output_text == here.engine.answer
    assert (read.previous_response_id, second.previous_response_id) == (first.id, first.id)
    assert [one.type for one in listed] == ["message"] * 3
    assert [turn.index for turn in turns] == [0, 1, 0]
    assert turns[1].messages == [{"role": "user", "content": "At noon?"}]
    assert [message["content"] for message in here.engine.asked[1]["messages"]] == [
        "When?",
        here.engine.answer,
        "At noon?",
    ]
    assert here.engine.asked[2]["messages"][1] == {"role": "assistant", "content": here.engine.answer}


@pytest.mark.own_broker
async def test_an_agent_goes_on_while_the_broker_is_frozen(nats: RunningServer, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        client = here.client(timeout=4.0)  # the broker's own answers are waited for longer
        try:
            os.kill(nats.pid, signal.SIGSTOP)
            first = await client.responses.create(model=ROLE, input="Where is it?")
            second = await client.responses.create(model=ROLE, input="And now?", previous_response_id=first.id)
        finally:
            os.kill(nats.pid, signal.SIGCONT)
        assert second.output_text == here.engine.answer
        assert [message["role"] for message in here.engine.asked[-1]["messages"]] == ["user", "assistant", "user"]


async def test_what_is_not_stored_is_not_kept(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        client = here.client()
        first = await client.responses.create(model=ROLE, input="When?", store=False)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=ROLE, input="?", previous_response_id=first.id)


async def test_what_a_policy_cannot_do_is_refused_by_name_and_recorded(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        client = here.client()
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.responses.create(model=ROLE, input="?", tools=[{"type": "web_search"}], stream=stream)
            assert (caught.value.param, caught.value.code) == ("tools[0].type", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.responses.create(model=ROLE, input="?", max_output_tokens=1.5)  # type: ignore[arg-type]
        refused = await here.published(Turn, 2)
    assert wrong.value.param == "max_output_tokens"
    assert all("web_search" in (turn.error or "") for turn in refused)
    assert not here.engine.asked


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_without_the_api_gets_a_chat(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    provider = FakeProvider("provider-key")
    async with providing(provider) as url:
        upstream = {"name": "provider", "base_url": url, "models": {"*": "big-model"}, "api_key_env": KEY_VARIABLE}
        async with scene(nats, tmp_path, upstreams=[upstream]) as here:
            client = here.client()
            if stream:
                async with client.responses.stream(model="other", input="Where?") as events:
                    response: Any = await events.get_final_response()
            else:
                response = await client.responses.create(model="other", input="Where?")
            (turn,) = await here.published(Turn, 1)
    assert response.output_text == provider.answer == turn.response["content"]
    assert provider.asked[0]["messages"] == turn.messages == [{"role": "user", "content": "Where?"}]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_upstream_that_has_the_api_gets_the_call_as_it_is(nats: Broker, tmp_path: Path, stream: bool) -> None:
    provider = ResponsesApp([{"reasoning_content": "Hm.", "content": "The provider answers."}])
    async with serving_responses(provider) as url:
        upstream = {"name": "provider", "base_url": url, "models": {"*": "big-model"}, "apis": ["responses"]}
        async with scene(nats, tmp_path, upstreams=[upstream]) as here:
            client = here.client()
            members: dict[str, Any] = {"model": "other", "input": "Where?", "text": {"verbosity": "low"}}
            if stream:
                async with client.responses.stream(**members) as events:
                    response: Any = await events.get_final_response()
            else:
                response = await client.responses.create(**members)
            (turn,) = await here.published(Turn, 1)
            with pytest.raises(openai.NotFoundError) as caught:  # the provider's own words
                await client.responses.create(model="other", input="?", previous_response_id="resp_unknown")
    assert response.output_text == "The provider answers."
    assert response.id == "resp_00000000000000000000000000000001"
    assert provider.received[0] == {**members, "model": "big-model", **({"stream": True} if stream else {})}
    assert turn.messages == [{"role": "user", "content": "Where?"}]
    assert turn.response == {"role": "assistant", "content": "The provider answers.", "reasoning_content": "Hm."}
    assert (turn.usage.prompt, turn.usage.completion, turn.usage.cached) == (9, 4, 3)
    assert (turn.api, turn.trainable.reason) == ("responses", "no_token_ids")
    assert caught.value.code == "previous_response_not_found"


@pytest.mark.parametrize("members", [{"content": 5}, {"content": None, "tool_calls": [{"id": 5, "function": "x"}]}])
async def test_a_chat_that_no_response_can_show_is_an_error_and_a_turn(
    nats: Broker, tmp_path: Path, members: dict[str, Any]
) -> None:
    async with scene(nats, tmp_path) as here:
        here.engine.messages[version(1).name] = {"role": "assistant", **members}
        with pytest.raises(openai.InternalServerError) as refused:
            await here.client().responses.create(model=ROLE, input=ASKED, extra_headers=an_id())
        (turn,) = await here.published(Turn, 1)
    assert refused.value.code == "engine_invalid"
    assert turn.turn_id == refused.value.response.headers["x-ratchet-turn"]
    assert turn.error is not None
    assert turn.trainable.reason == "error"
