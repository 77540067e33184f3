"""Anthropic's Messages API at the gateway: translated for policies and for upstreams of chat, else passed on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from ratchet.core.contract import Turn
from ratchet.core.service.problems import HttpError
from ratchet.gateway.settings import UpstreamSettings
from tests.support.fake_anthropic import FakeAnthropic, providing_messages
from tests.support.fake_engine import TOOLS, FakeProvider, providing, tool_call
from tests.support.gateway_scene import ROLE, Scene, ask, scene, version
from tests.support.servers import Broker

KEY_VARIABLE = "RATCHET_TEST_PROVIDER_KEY"
HI: list[Any] = [{"role": "user", "content": "Where is it?"}]
LOOK_UP: Any = {
    "name": "look_up",
    "input_schema": {"type": "object", "properties": {"order_id": {"type": "string"}}},
}
OF_THE_CALL = {"turn_id", "trajectory_id", "timestamp", "latency_ms", "first_token_ms", "request_digest", "api"}
"""Members in which two calls differ that ask the same."""


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KEY_VARIABLE, "provider-key")
    return "provider-key"


@asynccontextmanager
async def agent(here: Scene, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's own client, which knows the gateway's address and nothing else."""
    options = {"base_url": here.url, "auth_token": "none", "max_retries": 0, **options}
    async with anthropic.AsyncAnthropic(**options) as client:
        yield client


async def message_of(client: anthropic.AsyncAnthropic, *, streamed: bool, **asked: Any) -> Any:
    asked = {"model": ROLE, "max_tokens": 50, "messages": HI, **asked}
    if not streamed:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        return await stream.get_final_message()


def upstream(url: str, kind: str = "anthropic", **models: str) -> UpstreamSettings:
    return UpstreamSettings(name="claude", kind=kind, base_url=url, api_key_env=KEY_VARIABLE, models=models)


def compared(turn: Turn) -> dict[str, Any]:
    members = msgspec.to_builtins(turn)
    return {name: value for name, value in members.items() if name not in OF_THE_CALL}


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_policy_answers_and_the_turn_is_the_chats(nats: Broker, tmp_path: Path, streamed: bool) -> None:
    async with scene(nats, tmp_path) as here, agent(here) as client:
        message = await message_of(client, streamed=streamed, system="Be brief.", tools=[LOOK_UP])
        assert (message.content[0].text, message.stop_reason) == ("It arrives today.", "end_turn")
        assert message.usage.output_tokens == len("It arrives today.")
        assert here.engine.asked[-1]["model"] == version(1).name

        chat: list[Any] = [{"role": "system", "content": "Be brief."}, *HI]
        await ask(here.client(), chat, tools=TOOLS, max_completion_tokens=50, stream=streamed)
        turns = await here.published(Turn, 2)
        assert turns[0].trainable.ok
        assert compared(turns[0]) == compared(turns[1])


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_loop_of_tools_is_one_conversation(nats: Broker, tmp_path: Path, streamed: bool) -> None:
    async with scene(nats, tmp_path) as here, agent(here, base_url=f"{here.url}/t/{uuid.uuid4()}") as client:
        here.engine.tool_calls = [tool_call(name, '{"order_id":"K47"}') for name in ("call_1", "call_2")]
        first = await message_of(client, streamed=streamed, tools=[LOOK_UP])
        calls = [block for block in first.content if block.type == "tool_use"]
        assert [block.input for block in calls] == [{"order_id": "K47"}] * 2
        here.engine.tool_calls = None
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "today"} for block in calls]
        messages = [*HI, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        last = await message_of(client, streamed=streamed, tools=[LOOK_UP], messages=messages)

        assert last.stop_reason == "end_turn"
        turns = await here.published(Turn, 2)
        assert turns[1].parent_turn_id == turns[0].turn_id
        assert [message["role"] for message in turns[1].messages] == ["tool", "tool"]
        assert [call["id"] for call in turns[0].response["tool_calls"]] == ["call_1", "call_2"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_that_has_the_api_gets_the_request_as_it_is(
    nats: Broker, tmp_path: Path, key: str, streamed: bool
) -> None:
    tool = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"order_id": "K47"}}
    provider = FakeAnthropic(key, blocks=[{"type": "text", "text": "Wait."}, tool], stop_reason="tool_use")
    search = {"type": "web_search_20260318", "name": "web_search"}
    async with (
        providing_messages(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, writer="claude-opus")]) as here,
        agent(here) as client,
    ):
        message = await message_of(
            client,
            streamed=streamed,
            model="writer",
            tools=[LOOK_UP, search],
            extra_headers={"anthropic-beta": "context-1m", "anthropic-version": "2023-06-02"},
            extra_query={"beta": "true"},
        )
        assert [block.type for block in message.content] == ["text", "tool_use"]
        assert (message.content[1].input, message.stop_reason) == ({"order_id": "K47"}, "tool_use")
        assert provider.asked[0]["tools"] == [LOOK_UP, search]
        assert provider.asked[0].get("stream", False) is streamed
        assert "stream_options" not in provider.asked[0]
        sent = provider.headers[0]
        assert (sent["x-api-key"], sent["anthropic-beta"]) == (key, "context-1m")
        assert sent["anthropic-version"] == "2023-06-02"
        assert provider.queries == ["beta=true"]

        (turn,) = await here.published(Turn, 1)
        function = {"name": "look_up", "arguments": '{"order_id":"K47"}'}
        assert turn.response == {
            "role": "assistant",
            "content": "Wait.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        }
        assert turn.tools[0]["function"]["name"] == "look_up"
        assert (turn.usage.prompt, turn.usage.cached, turn.usage.completion) == (12, 3, 4)
        assert (turn.finish_reason, turn.trainable.ok) == ("tool_calls", False)
        assert (turn.provider.id, turn.provider.request_id) == ("msg_01", "req_01")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_upstream_of_chat_gets_the_translation(nats: Broker, tmp_path: Path, key: str, streamed: bool) -> None:
    provider = FakeProvider(key)
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, "openai", writer="big-model")]) as here,
        agent(here) as client,
    ):
        message = await message_of(client, streamed=streamed, model="writer")
        assert message.content[0].text == "The provider says so."
        assert (message.usage.input_tokens, message.usage.output_tokens) == (9, 4)
        assert provider.asked[0]["messages"] == HI
        (turn,) = await here.published(Turn, 1)
        assert turn.response["content"] == "The provider says so."


async def test_a_refusal_of_the_upstream_comes_in_its_own_words(nats: Broker, tmp_path: Path, key: str) -> None:
    provider = FakeAnthropic(key, refusing=(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"))
    async with (
        providing_messages(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, writer="claude-opus")]) as here,
        agent(here) as client,
    ):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 9") as raised:
            await message_of(client, streamed=False, model="writer")
        assert raised.value.request_id == "req_01"
        (turn,) = await here.published(Turn, 1)
        assert turn.provider.request_id == "req_01"


async def test_stream_that_upstream_breaks_off_raises_and_its_part_is_recorded(
    nats: Broker, tmp_path: Path, key: str
) -> None:
    provider = FakeAnthropic(key, breaks_after=asyncio.Event())
    async with (
        providing_messages(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, writer="claude-opus")]) as here,
        agent(here) as client,
    ):
        async with client.messages.stream(model="writer", max_tokens=50, messages=HI) as stream:
            pieces = stream.text_stream
            assert await anext(pieces) == "Clau"
            assert provider.breaks_after is not None
            provider.breaks_after.set()
            with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
                await stream.until_done()
        (turn,) = await here.published(Turn, 1)
        assert (turn.response["content"], turn.error) == ("Claude says so.", "Overloaded")


async def test_what_a_policy_cannot_take_is_refused_in_anthropics_shape(nats: Broker, tmp_path: Path) -> None:
    search: Any = {"type": "web_search_20260318", "name": "web_search"}
    async with scene(nats, tmp_path) as here, agent(here) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"tools\.0") as raised:
            await message_of(client, streamed=False, tools=[search])
        assert (raised.value.type, raised.value.error_code) == ("invalid_request_error", "unsupported")
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await message_of(client, streamed=True, max_tokens=-1)
        here.engine.refusing = {version(1).name: (400, "context_length_exceeded")}
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await message_of(client, streamed=False)
        assert here.engine.asked[-1]["messages"] == HI


async def test_tokens_are_counted_by_the_engine_that_would_answer(nats: Broker, tmp_path: Path, key: str) -> None:
    claude, provider = FakeAnthropic(key), FakeProvider(key)
    async with (
        providing_messages(claude) as claude_url,
        providing(provider) as chat_url,
        scene(
            nats,
            tmp_path,
            upstreams=[
                upstream(claude_url, writer="claude-opus"),
                upstream(chat_url, "openai", planner="big-model").model_copy(update={"name": "chat"}),
            ],
        ) as here,
        agent(here) as client,
    ):

        async def counted(model: str) -> tuple[str, int]:
            asked = client.messages.with_raw_response.count_tokens
            response = await asked(model=model, messages=HI, tools=[LOOK_UP])
            return response.headers["x-ratchet-count"], (await response.parse()).input_tokens

        assert await counted(ROLE) == ("exact", len(msgspec.json.encode(HI)))
        assert await counted("writer") == ("exact", claude.counted)
        assert claude.asked == [{"model": "claude-opus", "messages": HI, "tools": [LOOK_UP]}]
        how, count = await counted("planner")
        assert (how, 20 < count < 80) == ("estimated", True)
        assert provider.asked == []
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            await client.messages.count_tokens(model=ROLE, messages=[])


async def test_embeddings_come_from_the_upstream_that_maps_the_model(nats: Broker, tmp_path: Path, key: str) -> None:
    provider = FakeProvider(key)
    async with (
        providing(provider) as url,
        scene(nats, tmp_path, upstreams=[upstream(url, "openai", search="small-embedding")]) as here,
    ):
        client = here.client()
        answer = await client.embeddings.create(model="search", input="hi", encoding_format="float")
        assert (answer.data[0].embedding, answer.usage.prompt_tokens) == ([0.5, -0.5], 3)
        assert provider.asked == [{"model": "small-embedding", "input": "hi", "encoding_format": "float"}]
        with pytest.raises(openai.NotFoundError, match="policies have none"):
            await client.embeddings.create(model=ROLE, input="hi")
        provider.refusing = HttpError(400, "too many inputs", code="too_many")
        with pytest.raises(openai.BadRequestError, match="too many inputs"):
            await client.embeddings.create(model="search", input="hi")
        with pytest.raises(openai.BadRequestError, match="model"):
            await client.embeddings.create(model=5, input="hi")  # type: ignore[arg-type]


async def test_whoever_refuses_does_it_in_anthropics_shape(nats: Broker, tmp_path: Path) -> None:
    options: Any = {
        "api_keys": ["of-the-scene-0123456789", "secret-0123456789"],
        "body_limit": 4096,
        "requests_per_minute": 50,
    }
    async with scene(nats, tmp_path, **options) as here:
        async with agent(here, auth_token="wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await message_of(client, streamed=False)
            assert (refused.value.type, refused.value.error_code) == ("authentication_error", "invalid_api_key")
        async with agent(here, auth_token="secret-0123456789", base_url=f"{here.url}/t/{uuid.uuid4()}") as client:
            with pytest.raises(anthropic.APIStatusError) as large:
                await message_of(client, streamed=False, system="x" * 5000)
            assert (large.value.status_code, large.value.type) == (413, "request_too_large")
            with pytest.raises(anthropic.RateLimitError) as limited:
                await asyncio.gather(*(message_of(client, streamed=False) for _ in range(60)))
            assert limited.value.error_code == "rate_limit_exceeded"
            assert int(limited.value.response.headers["retry-after"]) > 0


async def test_an_answer_names_its_turn_as_the_request(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here, agent(here) as client:
        message = await message_of(client, streamed=False)
        (turn,) = await here.published(Turn, 1)
        assert message._request_id == turn.turn_id
        here.engine.broken = True
        with pytest.raises(anthropic.InternalServerError) as failed:
            await message_of(client, streamed=False)
        assert failed.value.request_id == (await here.published(Turn, 2))[1].turn_id
