"""Google's ADK: an agent over LiteLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, look_up, overheard, play

# guide
model = LiteLlm(model=f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY)
named = LiteLlm(model=f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY, extra_headers=RUN)
# end


async def events(agent: LlmAgent, text: str, mode: StreamingMode = StreamingMode.NONE) -> AsyncIterator[object]:
    runner = InMemoryRunner(agent, app_name="orders")
    session = await runner.session_service.create_session(app_name="orders", user_id="someone")
    asked = types.Content(role="user", parts=[types.Part(text=text)])
    config = RunConfig(streaming_mode=mode)
    async for event in runner.run_async(user_id="someone", session_id=session.id, new_message=asked, run_config=config):
        yield event


async def last(agent: LlmAgent, text: str) -> str:
    answer = [part.text async for event in events(agent, text) for part in event.content.parts if part.text]
    return answer[-1]


async def pieces() -> AsyncIterator[str]:
    async for event in events(LlmAgent(name="clerk", model=model), STREAM, StreamingMode.SSE):
        if event.partial:
            yield event.content.parts[0].text


async def plain() -> str:
    return await last(LlmAgent(name="clerk", model=named), PLAIN)


async def stream() -> str:
    return await overheard(pieces())


async def tools() -> str:
    return await last(LlmAgent(name="clerk", model=model, tools=[look_up]), TOOLS)


async def parallel() -> str:
    return await last(LlmAgent(name="clerk", model=model, tools=[look_up]), PARALLEL)


play(plain=plain, stream=stream, tools=tools, parallel=parallel)
