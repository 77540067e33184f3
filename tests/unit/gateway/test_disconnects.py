"""Agents that disconnect and engines that break off at the worst moments: every call becomes a turn, with what came."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.rules.access import Caller
from ratchet.core.service.asgi import EventStream
from ratchet.dialects.api_dialect import CHAT
from tests.support.gateway_alone import alone, chat_request


async def test_agent_that_disconnects_in_the_moment_of_the_answer_leaves_a_turn(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        calling = asyncio.create_task(here.completions.complete(CHAT, chat_request(stream=True), None))
        here.server.after_answer = calling.cancel
        await here.server.asked.wait()
        here.server.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
        (turn,) = await here.published()
        assert turn["trainable"]["reason"] == "cancelled"


async def test_a_call_that_its_agent_leaves_counts_for_its_key(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        request = msgspec.structs.replace(chat_request(), caller=Caller("key_1", "agent", frozenset({"infer:*"})))
        calling = asyncio.create_task(here.completions.complete(CHAT, request, None))
        await here.server.asked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert here.spent == [("key_1", len(request.body) // 4, 0.0)]


async def test_agent_that_leaves_its_stream_in_the_moment_of_answer_leaves_turn(tmp_path: Path) -> None:
    async with alone(tmp_path, keep_alive_s=0.001) as here:
        answer = await here.completions.complete(CHAT, chat_request(stream=True), None)
        assert isinstance(answer, EventStream)
        assert (await anext(answer.events)).startswith(b":")
        answered = asyncio.Event()
        here.server.after_answer = answered.set
        here.server.may_answer.set()
        await answered.wait()
        await answer.events.aclose()
        (turn,) = await here.published()
        assert turn["trainable"]["reason"] == "cancelled"


async def test_a_stream_that_the_agent_reads_to_its_end_is_one_answered_turn(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        here.server.may_answer.set()
        answer = await here.completions.complete(CHAT, chat_request(stream=True), None)
        assert isinstance(answer, EventStream)
        assert [event async for event in answer.events][-1].endswith(b"data: [DONE]\n\n")
        (turn,) = await here.published()
        assert turn["response"]["content"] == "hello"


def part(index: int, text: str) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"index": index, "delta": {"content": text}}]})


@pytest.mark.parametrize("how", ["broken", "cancelled"])
async def test_each_of_several_answers_that_end_early_is_a_turn_with_its_part(tmp_path: Path, how: str) -> None:
    async with alone(tmp_path) as here:
        here.server.events = [part(0, "a"), part(1, "b"), part(0, "c")]
        answer = await here.completions.complete(CHAT, chat_request(stream=True, n=3), None)
        assert isinstance(answer, EventStream)
        if how == "broken":
            assert b"broke off" in [event async for event in answer.events][-1]
        else:
            for _ in here.server.events:
                await anext(answer.events)
            await answer.events.aclose()
        turns: list[dict[str, Any]] = await here.published()
        texts = [(turn.get("response") or {}).get("content") for turn in turns]
        assert texts == ["ac", "b", None]
        assert [turn.get("attempt", 1) for turn in turns] == [1, 2, 3]
        assert {turn["trainable"]["reason"] for turn in turns} == {"error" if how == "broken" else "cancelled"}
        assert len({turn["turn_id"] for turn in turns}) == 3


async def test_a_stream_for_which_there_is_no_room_leaves_its_request_and_usage(tmp_path: Path) -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 99}}'
    async with alone(tmp_path, streams_bytes=1000) as here:
        here.server.events = [*(part(0, "x") for _ in range(100)), usage, b"data: [DONE]"]
        answer = await here.completions.complete(CHAT, chat_request(stream=True), None)
        assert isinstance(answer, EventStream)
        assert b"".join([event async for event in answer.events]).count(b'"x"') == 100
        (turn,) = await here.published()
        assert (turn["trainable"]["reason"], turn.get("response")) == ("too_large", None)
        assert (turn["usage"]["completion"], turn["messages"][0]["content"]) == (99, "hi")
