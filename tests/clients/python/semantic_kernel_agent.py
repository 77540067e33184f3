"""Semantic Kernel: a chat completion agent with a plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, look_up, overheard, play
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function

# guide
model = OpenAIChatCompletion(MODEL, async_client=openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY))
named = OpenAIChatCompletion(
    MODEL, async_client=openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, default_headers=RUN)
)
# end


class Orders:
    @kernel_function(name="look_up", description="Says where an order is.")
    def look_up(self, order_id: str) -> str:
        return look_up(order_id)


async def ask(text: str, service: OpenAIChatCompletion = model) -> str:
    plugins = [Orders()] if service is model else []
    return str(await ChatCompletionAgent(service=service, name="clerk", plugins=plugins).get_response(text))


async def pieces() -> AsyncIterator[str]:
    async for piece in ChatCompletionAgent(service=model, name="clerk").invoke_stream(STREAM):
        yield str(piece.content)


async def plain() -> str:
    return await ask(PLAIN, named)


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return await ask(TOOLS)


async def parallel() -> str:
    return await ask(PARALLEL)


play(plain=plain, stream=stream, tools=tools, parallel=parallel)
