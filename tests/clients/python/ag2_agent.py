"""AG2: an agent that is asked."""

from __future__ import annotations

from typing import Any

from ag2 import Agent
from ag2.config import OpenAIConfig
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, TOOLS, look_up, play
from pydantic import BaseModel

# guide
model = OpenAIConfig(MODEL, base_url=BASE_URL, api_key=KEY)
named = OpenAIConfig(MODEL, base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


async def ask(config: OpenAIConfig, text: str, *tools: Any) -> str:
    return str((await Agent("clerk", config=config, tools=tools).ask(text)).body)


async def plain() -> str:
    return await ask(named, PLAIN)


async def tools() -> str:
    return await ask(model, TOOLS, look_up)


async def parallel() -> str:
    return await ask(model, PARALLEL, look_up)


async def schema() -> dict[str, Any]:
    reply = await Agent("clerk", config=model, response_schema=Trip).ask(SCHEMA)
    return (await reply.content()).model_dump()


play(plain=plain, tools=tools, parallel=parallel, schema=schema)
