"""OpenAI's Agents SDK: an agent with its default model, which is one of the Responses API."""

from __future__ import annotations

from typing import Any

from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, look_up, overheard, play
from pydantic import BaseModel

# guide
gateway = RunConfig(model_provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))
named = ModelSettings(extra_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


agent = Agent(name="clerk", model=MODEL, tools=[function_tool(look_up)])


async def plain() -> str:
    clerk = Agent(name="clerk", model=MODEL, model_settings=named)
    return (await Runner.run(clerk, PLAIN, run_config=gateway)).final_output


async def stream_pieces() -> Any:
    async for event in Runner.run_streamed(
        Agent(name="clerk", model=MODEL), STREAM, run_config=gateway
    ).stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            yield event.data.delta


async def stream() -> str:
    return await overheard(stream_pieces())


async def tools() -> str:
    return (await Runner.run(agent, TOOLS, run_config=gateway)).final_output


async def parallel() -> str:
    return (await Runner.run(agent, PARALLEL, run_config=gateway)).final_output


async def schema() -> dict[str, Any]:
    clerk = Agent(name="clerk", model=MODEL, output_type=Trip)
    return (await Runner.run(clerk, SCHEMA, run_config=gateway)).final_output.model_dump()


play(plain=plain, stream=stream, tools=tools, parallel=parallel, schema=schema)
