"""LiteLLM's SDK: completions, tools by hand."""

from __future__ import annotations

import json
from typing import Any

import litellm
from playing import (
    BASE_URL,
    FUNCTION,
    KEY,
    MODEL,
    PARALLEL,
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
gateway = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY}
named = {**gateway, "extra_headers": RUN}
# end


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def stream() -> str:
    chunks = litellm.completion(messages=user(STREAM), stream=True, **gateway)
    return heard(chunk.choices[0].delta.content for chunk in chunks)


def loop(text: str) -> str:
    messages = user(text)
    while True:
        tools = [{"type": "function", "function": FUNCTION}]
        message = litellm.completion(messages=messages, tools=tools, **gateway).choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        for call in message.tool_calls:
            result = look_up(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


play(
    plain=lambda: litellm.completion(messages=user(PLAIN), **named).choices[0].message.content,
    stream=stream,
    tools=lambda: loop(TOOLS),
    parallel=lambda: loop(PARALLEL),
    retry=lambda: litellm.completion(messages=user(RETRY), max_retries=2, **gateway).choices[0].message.content,
)
