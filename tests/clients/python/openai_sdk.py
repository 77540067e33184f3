"""OpenAI's SDK: chat completions, tools by hand, parse, retries."""

from __future__ import annotations

import json
from typing import Any

import openai
from playing import (
    BASE_URL,
    FUNCTION,
    KEY,
    MODEL,
    PARALLEL,
    PLAIN,
    RETRY,
    RUN,
    SCHEMA,
    STREAM,
    TOOLS,
    heard,
    look_up,
    play,
)
from pydantic import BaseModel

# guide
client = openai.OpenAI(base_url=BASE_URL, api_key=KEY)
named = client.with_options(default_headers=RUN)
# end


class Trip(BaseModel):
    city: str
    days: int


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def plain() -> str | None:
    return named.chat.completions.create(model=MODEL, messages=user(PLAIN)).choices[0].message.content


def stream() -> str:
    chunks = client.chat.completions.create(model=MODEL, messages=user(STREAM), stream=True)
    return heard(chunk.choices[0].delta.content for chunk in chunks if chunk.choices)


def loop(text: str) -> str | None:
    messages = user(text)
    while True:
        tools: list[Any] = [{"type": "function", "function": FUNCTION}]
        message = client.chat.completions.create(model=MODEL, messages=messages, tools=tools).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = look_up(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def schema() -> dict[str, Any]:
    parsed = client.chat.completions.parse(model=MODEL, messages=user(SCHEMA), response_format=Trip)
    return parsed.choices[0].message.parsed.model_dump()


def retry() -> str | None:
    return client.chat.completions.create(model=MODEL, messages=user(RETRY)).choices[0].message.content


def embed() -> list[float]:
    return client.embeddings.create(model=MODEL, input=["an order"]).data[0].embedding


play(
    plain=plain,
    stream=stream,
    tools=lambda: loop(TOOLS),
    parallel=lambda: loop(PARALLEL),
    schema=schema,
    retry=retry,
    embed=embed,
)
