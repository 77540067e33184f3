"""AutoGen: an assistant agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel

# guide
model = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key=KEY)
named = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


async def ask(text: str, **options: Any) -> Any:
    clerk = AssistantAgent("clerk", **{"model_client": model, "max_tool_iterations": 5, **options})
    return (await clerk.run(task=text)).messages[-1].content


async def pieces() -> AsyncIterator[str]:
    async for event in AssistantAgent("clerk", model, model_client_stream=True).run_stream(task=STREAM):
        if isinstance(event, ModelClientStreamingChunkEvent):
            yield event.content


async def plain() -> str:
    return await ask(PLAIN, model_client=named)


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return await ask(TOOLS, tools=[look_up])


async def parallel() -> str:
    return await ask(PARALLEL, tools=[look_up])


async def schema() -> dict[str, Any]:
    return (await ask(SCHEMA, output_content_type=Trip)).model_dump()


play(plain=plain, stream=stream, tools=tools, parallel=parallel, schema=schema)
