"""smolagents: an agent that calls tools."""

from __future__ import annotations

from collections.abc import Iterator

from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, heard, look_up, play
from smolagents import OpenAIModel, ToolCallingAgent, tool

# guide
model = OpenAIModel(MODEL, api_base=BASE_URL, api_key=KEY)
named = OpenAIModel(MODEL, api_base=BASE_URL, api_key=KEY, client_kwargs={"default_headers": RUN})
# end


def user(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def pieces() -> Iterator[str | None]:
    for delta in model.generate_stream(user(STREAM)):
        yield delta.content


def run(text: str) -> str:
    return str(ToolCallingAgent(tools=[tool(look_up)], model=model, max_steps=6).run(text))


play(
    plain=lambda: named.generate(user(PLAIN)).content,
    stream=lambda: heard(pieces()),
    tools=lambda: run(TOOLS),
    parallel=lambda: run(PARALLEL),
)
