"""Inspect: an evaluation of one sample with its react agent, and a plain call of a model."""

from __future__ import annotations

from inspect_ai import Task, eval_async
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.tool import Tool, tool
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, TOOLS, look_up, play

# guide
model = get_model(f"openai/{MODEL}", base_url=BASE_URL, api_key=KEY)
named = get_model(f"openai/{MODEL}", base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


@tool(name="look_up")
def orders() -> Tool:
    async def execute(order_id: str) -> str:
        """Says where an order is.

        Args:
            order_id: the order's number.
        """
        return look_up(order_id)

    return execute


async def ask(text: str) -> str:
    task = Task(dataset=[Sample(input=text)], solver=react(tools=[orders()]))
    (log,) = await eval_async(task, model=model, log_dir="logs")
    return log.samples[0].output.completion


async def plain() -> str:
    return (await named.generate(PLAIN)).completion


async def tools() -> str:
    return await ask(TOOLS)


async def parallel() -> str:
    return await ask(PARALLEL)


play(plain=plain, tools=tools, parallel=parallel)
