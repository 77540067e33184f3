"""Haystack: an agent with a tool."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, heard, look_up, play

AGENT: dict[str, Any] = {"model": MODEL, "api_key": Secret.from_token(KEY)}
# guide
model = OpenAIChatGenerator(api_base_url=BASE_URL, **AGENT)
named = OpenAIChatGenerator(api_base_url=BASE_URL, generation_kwargs={"extra_headers": RUN}, **AGENT)
# end

user = ChatMessage.from_user


def pieces() -> Iterator[str]:
    came: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            model.run([user(STREAM)], streaming_callback=lambda chunk: came.put(chunk.content))
        finally:
            came.put(None)

    threading.Thread(target=run).start()
    yield from iter(came.get, None)


def run(text: str) -> str | None:
    agent = Agent(chat_generator=model, tools=[create_tool_from_function(look_up)])
    return agent.run(messages=[user(text)])["messages"][-1].text


play(
    plain=lambda: named.run([user(PLAIN)])["replies"][0].text,
    stream=lambda: heard(pieces()),
    tools=lambda: run(TOOLS),
    parallel=lambda: run(PARALLEL),
)
