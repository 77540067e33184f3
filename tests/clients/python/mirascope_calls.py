"""Mirascope: calls and their loop by hand; a model named `openai/...` is asked over the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mirascope import llm
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, SCHEMA, STREAM, TOOLS, heard, look_up, play
from pydantic import BaseModel

# guide
llm.register_provider("openai", api_key=KEY, base_url=BASE_URL)
run = BASE_URL.removesuffix("/v1") + "/t/nightly-17/v1"
llm.register_provider(llm.providers.OpenAIProvider(api_key=KEY, base_url=run), scope="openai/nightly/")
# end

model = llm.Model(f"openai/{MODEL}")


class Trip(BaseModel):
    city: str
    days: int


def pieces() -> Iterator[str]:
    yield from model.stream(STREAM).text_stream()


def loop(text: str) -> str:
    response = model.call(text, tools=[llm.tool(look_up)])
    while response.tool_calls:
        response = response.resume(response.execute_tools())
    return response.text()


def schema() -> dict[str, Any]:
    return model.call(SCHEMA, format=Trip).parse().model_dump()


play(
    plain=lambda: llm.Model(f"openai/nightly/{MODEL}").call(PLAIN).text(),
    stream=lambda: heard(pieces()),
    tools=lambda: loop(TOOLS),
    parallel=lambda: loop(PARALLEL),
    schema=schema,
)
