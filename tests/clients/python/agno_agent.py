"""Agno: an agent with a tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, heard, look_up, play
from pydantic import BaseModel

# guide
model = OpenAIChat(id=MODEL, base_url=BASE_URL, api_key=KEY)
named = OpenAIChat(id=MODEL, base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


def pieces() -> Iterator[str | None]:
    for event in Agent(model=model).run(STREAM, stream=True):
        yield event.content


def schema() -> dict[str, Any]:
    return Agent(model=model, output_schema=Trip).run(SCHEMA).content.model_dump()


play(
    plain=lambda: Agent(model=named).run(PLAIN).content,
    stream=lambda: heard(pieces()),
    tools=lambda: Agent(model=model, tools=[look_up]).run(TOOLS).content,
    parallel=lambda: Agent(model=model, tools=[look_up]).run(PARALLEL).content,
    schema=schema,
)
