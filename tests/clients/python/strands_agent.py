"""Strands Agents: an agent with a tool; it always streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel

# guide
model = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": KEY}, model_id=MODEL)
named = OpenAIModel(client_args={"base_url": BASE_URL, "api_key": KEY, "default_headers": RUN}, model_id=MODEL)
# end


class Trip(BaseModel):
    city: str
    days: int


def agent(which: OpenAIModel = model) -> Agent:
    return Agent(which, tools=[tool(look_up)], callback_handler=None)


async def pieces() -> AsyncIterator[str]:
    async for event in agent().stream_async(STREAM):
        yield event.get("data", "")


async def stream() -> str:
    return await overheard(pieces())


def schema() -> dict[str, Any]:
    return Agent(model, callback_handler=None)(SCHEMA, structured_output_model=Trip).structured_output.model_dump()


play(
    plain=lambda: agent(named)(PLAIN),
    stream=stream,
    tools=lambda: agent()(TOOLS),
    parallel=lambda: agent()(PARALLEL),
    schema=schema,
)
