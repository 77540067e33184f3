"""Pydantic AI: an agent with the model that `openai:<model>` means, which is one of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

# guide
model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))
named = Agent(model, model_settings={"extra_headers": RUN})
# end


class Trip(BaseModel):
    city: str
    days: int


agent = Agent(model, tools=[look_up])


async def plain() -> str:
    return (await named.run(PLAIN)).output


async def pieces() -> AsyncIterator[str]:
    async with Agent(model).run_stream(STREAM) as run:
        async for piece in run.stream_text(delta=True, debounce_by=None):
            yield piece


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return (await agent.run(TOOLS)).output


async def parallel() -> str:
    return (await agent.run(PARALLEL)).output


async def schema() -> dict[str, Any]:
    return (await Agent(model, output_type=Trip).run(SCHEMA)).output.model_dump()


play(plain=plain, stream=stream, tools=tools, parallel=parallel, schema=schema)
