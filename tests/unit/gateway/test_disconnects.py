"""An agent that disconnects at the worst moments: every call becomes a turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ratchet.gateway.domain.forms import CHAT
from ratchet.service.asgi import EventStream
from tests.support.gateway_alone import alone, chat_request


async def test_an_agent_that_disconnects_in_the_moment_of_the_answer_leaves_a_turn(tmp_path: Path) -> None:
    async with alone(tmp_path) as here:
        calling = asyncio.create_task(here.completions.complete(CHAT, chat_request(stream=True), None))
        here.server.after_answer = calling.cancel
        await here.server.asked.wait()
        here.server.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
        (turn,) = await here.published()
        assert turn["trainable"]["reason"] == "cancelled"


async def test_an_agent_that_leaves_its_stream_in_the_moment_of_the_answer_leaves_a_turn(tmp_path: Path) -> None:
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
