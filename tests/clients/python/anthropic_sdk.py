"""Anthropic's SDK: messages, streams, tools by hand."""

from __future__ import annotations

from typing import Any

import anthropic
from playing import (
    BASE_URL,
    FUNCTION,
    KEY,
    MODEL,
    PARALLEL,
    PARAMETERS,
    PLAIN,
    RETRY,
    RUN,
    STREAM,
    TOOLS,
    heard,
    look_up,
    play,
)

# guide
client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY)
named = client.with_options(default_headers=RUN)
# end


def asked(text: str) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}


def plain() -> str:
    return named.messages.create(**asked(PLAIN)).content[0].text


def count() -> str:
    request = asked(PLAIN)
    return str(client.messages.count_tokens(model=MODEL, messages=request["messages"]).input_tokens)


def stream() -> str:
    with client.messages.stream(**asked(STREAM)) as events:
        return heard(events.text_stream)


def loop(text: str) -> str:
    request = asked(text)
    tool = {"name": "look_up", "description": FUNCTION["description"], "input_schema": PARAMETERS}
    while True:
        message = client.messages.create(**request, tools=[tool])
        if message.stop_reason != "tool_use":
            return message.content[0].text
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": look_up(**block.input)}
            for block in message.content
            if block.type == "tool_use"
        ]
        request["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


play(
    count=count,
    plain=plain,
    stream=stream,
    tools=lambda: loop(TOOLS),
    parallel=lambda: loop(PARALLEL),
    retry=lambda: client.messages.create(**asked(RETRY)).content[0].text,
)
