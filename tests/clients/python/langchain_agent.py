"""LangChain's create_agent, which is a graph of LangGraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_openai import ChatOpenAI
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, SCHEMA, STREAM, TOOLS, heard, look_up, play
from pydantic import BaseModel

# guide
model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY)
named = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


agent = create_agent(model, tools=[look_up])


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def schema() -> dict[str, Any]:
    clerk = create_agent(model, response_format=ProviderStrategy(Trip))
    return clerk.invoke(asked(SCHEMA))["structured_response"].model_dump()


def pieces() -> Iterator[str]:
    for chunk, _ in create_agent(model, tools=[]).stream(asked(STREAM), stream_mode="messages"):
        yield chunk.text


play(
    plain=lambda: named.invoke(PLAIN).text,
    stream=lambda: heard(pieces()),
    tools=lambda: agent.invoke(asked(TOOLS))["messages"][-1].text,
    parallel=lambda: agent.invoke(asked(PARALLEL))["messages"][-1].text,
    schema=schema,
)
