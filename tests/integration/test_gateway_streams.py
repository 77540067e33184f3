"""Streams and text completions, read by the public OpenAI client: it cannot tell that the engine did not stream."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import openai
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.service.problems import HttpError
from tests.support.fake_engine import TOOLS, tool_call
from tests.support.gateway_scene import ROLE, Scene, scene, version
from tests.support.running import http_client
from tests.support.servers import Broker

HI: list[Any] = [{"role": "user", "content": "where is it?"}]
CALLED: list[Any] = [tool_call("call_a"), tool_call("call_b", "{}")]


async def test_a_stream_arrives_in_chunks_with_the_headers_of_its_turn(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        here.engine.answer = "It was sent on Monday and arrives today."
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")
        raw = await client.chat.completions.with_raw_response.create(
            model=ROLE, messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in raw.parse()]
        (turn,) = await here.published(Turn, 1)
        pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
        assert len([piece for piece in pieces if piece]) > 2
        assert "".join(piece or "" for piece in pieces) == here.engine.answer
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(here.engine.answer)
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert raw.headers["x-ratchet-trajectory"] == trajectory == turn.trajectory_id
        assert raw.headers["x-ratchet-turn"] == turn.turn_id
        assert raw.headers["x-ratchet-policy"] == version(1).name
        assert turn.trainable.ok
        assert turn.response["content"] == here.engine.answer
        assert here.engine.asked[0]["stream"]
        assert turn.first_token_ms <= turn.latency_ms


async def test_tool_calls_stream_and_the_next_call_continues_the_turn(nats: Broker, tmp_path: Path) -> None:
    headers = {"x-ratchet-trajectory": str(uuid.uuid4())}
    async with scene(nats, tmp_path) as here:
        here.engine.tool_calls = CALLED
        client = here.client(default_headers=headers)
        async with client.chat.completions.stream(model=ROLE, messages=HI, tools=TOOLS) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        assert [call.model_dump(exclude={"index"}) for call in message.tool_calls or []] == [
            {**call, "function": {**call["function"], "parsed_arguments": None}} for call in CALLED
        ]
        called = {"role": "assistant", "content": None, "tool_calls": CALLED}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "sent"} for call in CALLED]
        here.engine.tool_calls = None
        stream = await client.chat.completions.create(
            model=ROLE, messages=[*HI, called, *results], tools=TOOLS, stream=True
        )
        assert [chunk async for chunk in stream]
        first, second = await here.published(Turn, 2)
        assert (second.index, second.parent_turn_id) == (1, first.turn_id)
        assert first.finish_reason == "tool_calls"


async def test_an_error_has_its_status_before_the_stream_and_an_event_within_it(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, keep_alive_s=60) as here:
        here.engine.broken = True
        with pytest.raises(openai.InternalServerError) as early:
            await _streamed(here)
        assert (early.value.status_code, early.value.code) == (502, "engine_failed")
    async with scene(nats, tmp_path, keep_alive_s=0.05) as here:
        here.engine.broken = True
        here.engine.at_work.clear()
        stream = await _streamed(here)
        here.engine.at_work.set()
        with pytest.raises(openai.APIError, match="out of memory"):
            assert [chunk async for chunk in stream]
        turns = await here.published(Turn, 2)
        assert {turn.error for turn in turns} == {"out of memory"}


async def test_a_stream_sends_keep_alive_comments_while_the_engine_works(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, keep_alive_s=0.02) as here, http_client() as http:
        here.engine.at_work.clear()
        body = {"model": ROLE, "messages": HI, "stream": True}
        async with http.stream("POST", f"{here.url}/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            comments = [line for _ in range(6) if (line := await anext(lines)).startswith(":")]
            here.engine.at_work.set()
            rest = [line async for line in lines if line and not line.startswith(":")]
    assert len(comments) == 3
    assert rest[-1] == "data: [DONE]"


async def test_an_agent_that_goes_away_in_mid_stream_ends_the_engines_call(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path, keep_alive_s=0.02) as here:
        here.engine.at_work.clear()
        stream = await _streamed(here)

        async def asked() -> bool:
            return bool(here.engine.asked)

        await eventually(asked)
        await stream.close()

        async def left() -> bool:
            return here.engine.left == 1

        await eventually(left)
        (turn,) = await here.published(Turn, 1)
        assert (turn.response, turn.error, turn.finish_reason) == (None, None, "cancelled")
        assert (turn.trainable.ok, turn.trainable.reason) == (False, "cancelled")
        here.engine.at_work.set()
        assert [chunk async for chunk in await _streamed(here)]


async def test_agent_that_goes_away_before_a_plain_answer_ends_engines_call_too(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        here.engine.at_work.clear()
        asking = asyncio.create_task(here.client().chat.completions.create(model=ROLE, messages=HI))

        async def asked() -> bool:
            return bool(here.engine.asked)

        await eventually(asked)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        async def left() -> bool:
            return here.engine.left == 1

        await eventually(left)
        (turn,) = await here.published(Turn, 1)
        assert turn.trainable.reason == "cancelled"


async def test_each_chunk_arrives_before_the_engine_makes_the_next(nats: Broker, tmp_path: Path) -> None:
    arrived = asyncio.Queue[None]()

    async def before(number: int) -> None:
        if number > 1:  # the first chunk says only who speaks
            await arrived.get()

    async with scene(nats, tmp_path, keep_alive_s=60) as here:
        here.engine.before_event = before
        async for chunk in await _streamed(here):
            if chunk.choices and chunk.choices[0].delta.content:
                arrived.put_nowait(None)
        (turn,) = await here.published(Turn, 1)
        assert turn.response["content"] == here.engine.answer
        assert turn.trainable.ok


@pytest.mark.parametrize("reported", [True, False])
async def test_stream_that_breaks_off_is_error_for_agent_and_turn_with_its_part(
    nats: Broker, tmp_path: Path, reported: bool
) -> None:
    async def before(number: int) -> None:
        if number == 3:
            raise HttpError(500, "out of memory") if reported else RuntimeError("the engine dies")

    async with scene(nats, tmp_path) as here:
        here.engine.before_event = before
        pieces = list[str]()

        async def read() -> None:
            async for chunk in await _streamed(here):
                pieces.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError, match="out of memory" if reported else "broke off"):
            await read()
        (turn,) = await here.published(Turn, 1)
        assert turn.response["content"] == "".join(pieces) == here.engine.answer[:8]
        assert ("out of memory" if reported else "broke off") in turn.error
        assert (turn.trainable.ok, turn.trainable.reason) == (False, "error")


async def test_the_part_that_an_agent_got_before_it_went_away_is_recorded(nats: Broker, tmp_path: Path) -> None:
    never = asyncio.Event()

    async def before(number: int) -> None:
        if number == 3:
            await never.wait()

    async with scene(nats, tmp_path) as here:
        here.engine.before_event = before
        stream = await _streamed(here)
        async for chunk in stream:
            if here.engine.answer[4:8] == chunk.choices[0].delta.content:
                break
        await stream.close()

        async def left() -> bool:
            return here.engine.left == 1

        await eventually(left)
        (turn,) = await here.published(Turn, 1)
        assert (turn.response["content"], turn.finish_reason, turn.error) == (here.engine.answer[:8], "cancelled", None)
        assert turn.trainable.reason == "cancelled"


async def test_a_silent_stream_ends_with_a_time_out(nats: Broker, tmp_path: Path) -> None:
    never = asyncio.Event()

    async def before(number: int) -> None:
        if number == 3:
            await never.wait()

    async with scene(nats, tmp_path, engine_idle_s=0.3) as here:
        here.engine.before_event = before
        with pytest.raises(openai.APIError, match="took too long"):
            assert [chunk async for chunk in await _streamed(here)]
        (turn,) = await here.published(Turn, 1)
        assert (turn.response["content"], turn.trainable.reason) == (here.engine.answer[:8], "error")


async def test_several_answers_to_a_call_are_siblings(nats: Broker, tmp_path: Path) -> None:
    async with scene(nats, tmp_path) as here:
        client = here.client()
        plain = await client.chat.completions.create(model=ROLE, messages=HI, n=3)
        assert [choice.message.content for choice in plain.choices] == [here.engine.answer] * 3
        stream = await client.chat.completions.create(model=ROLE, messages=HI, n=2, stream=True)
        assert {choice.index async for chunk in stream for choice in chunk.choices} == {0, 1}
        turns = await here.published(Turn, 5)
        assert [turn.attempt for turn in turns] == [1, 2, 3, 1, 2]
        assert len({turn.trajectory_id for turn in turns}) == 2
        assert all(turn.trainable.ok for turn in turns)
        assert {turn.usage.completion for turn in turns} == {len(here.engine.answer)}


async def test_text_completions_are_answered_streamed_and_captured(nats: Broker, tmp_path: Path) -> None:
    trajectory = str(uuid.uuid4())
    async with scene(nats, tmp_path) as here:
        client = here.client(base_url=f"{here.url}/t/{trajectory}/v1")
        plain = await client.completions.create(model=ROLE, prompt="Once upon a time")
        assert plain.choices[0].text == here.engine.answer
        assert plain.choices[0].logprobs is None
        stream = await client.completions.create(model=ROLE, prompt=["Once"], stream=True, logprobs=0)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == here.engine.answer
        ids = await client.completions.create(model=ROLE, prompt=[5, 6, 7])
        assert ids.usage is not None
        assert ids.usage.prompt_tokens == 3
        text, streamed, by_ids = await here.published(Turn, 3)
        assert {turn.trajectory_id for turn in (text, streamed, by_ids)} == {trajectory}
        assert text.messages == [{"role": "user", "content": "Once upon a time"}]
        assert text.response == {"role": "assistant", "content": here.engine.answer}
        assert text.prompt_token_ids.suffix == list(b"Once upon a time")
        assert (text.trainable.ok, streamed.trainable.ok) == (True, True)
        assert (by_ids.trainable.reason, by_ids.prompt_token_ids) == ("unsearchable_prompt", None)


async def _streamed(here: Scene) -> Any:
    return await here.client().chat.completions.create(model=ROLE, messages=HI, stream=True)
