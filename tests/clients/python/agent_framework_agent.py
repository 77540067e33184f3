"""Microsoft's Agent Framework: an agent with its default client, which is one of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel

# guide
model = OpenAIChatClient(model=MODEL, base_url=BASE_URL, api_key=KEY)
named = OpenAIChatClient(model=MODEL, base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


async def plain() -> str:
    return (await Agent(named).run(PLAIN)).text


async def pieces() -> AsyncIterator[str]:
    async for update in Agent(model).run(STREAM, stream=True):
        yield update.text


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return (await Agent(model, tools=[look_up]).run(TOOLS)).text


async def parallel() -> str:
    return (await Agent(model, tools=[look_up]).run(PARALLEL)).text


async def schema() -> dict[str, Any]:
    return (await Agent(model).run(SCHEMA, options={"response_format": Trip})).value.model_dump()


play(plain=plain, stream=stream, tools=tools, parallel=parallel, schema=schema)
