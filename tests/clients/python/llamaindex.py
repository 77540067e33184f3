"""LlamaIndex: a function agent over an OpenAI-like model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel

AGENT: dict[str, Any] = {"model": MODEL, "is_chat_model": True, "is_function_calling_model": True}
# guide
model = OpenAILike(api_base=BASE_URL, api_key=KEY, **AGENT)
named = OpenAILike(api_base=BASE_URL, api_key=KEY, default_headers=RUN, **AGENT)
# end


class Trip(BaseModel):
    city: str
    days: int


async def plain() -> str | None:
    return (await named.achat([ChatMessage(role="user", content=PLAIN)])).message.content


async def pieces() -> AsyncIterator[str]:
    handler = FunctionAgent(llm=model, tools=[look_up]).run(STREAM)
    async for event in handler.stream_events():
        if isinstance(event, AgentStream):
            yield event.delta
    await handler


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return str(await FunctionAgent(llm=model, tools=[look_up]).run(TOOLS))


async def parallel() -> str:
    return str(await FunctionAgent(llm=model, tools=[look_up]).run(PARALLEL))


async def schema() -> dict[str, Any]:
    made = await model.as_structured_llm(Trip).achat([ChatMessage(role="user", content=SCHEMA)])
    return made.raw.model_dump()


play(plain=plain, stream=stream, tools=tools, parallel=parallel, schema=schema)
