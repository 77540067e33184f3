"""aisuite: its client, which also runs tools."""

from __future__ import annotations

from collections.abc import Iterator

import aisuite
from playing import BASE_URL, KEY, MODEL, PARALLEL, PLAIN, RUN, STREAM, TOOLS, heard, look_up, play

# guide
client = aisuite.Client({"openai": {"base_url": BASE_URL, "api_key": KEY}})
named = aisuite.Client({"openai": {"base_url": BASE_URL, "api_key": KEY, "default_headers": RUN}})
# end


def ask(text: str, **options: object) -> str:
    messages = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=f"openai:{MODEL}", messages=messages, **options)
    return answer.choices[0].message.content


def plain() -> str:
    messages = [{"role": "user", "content": PLAIN}]
    return named.chat.completions.create(model=f"openai:{MODEL}", messages=messages).choices[0].message.content


def pieces() -> Iterator[str | None]:
    messages = [{"role": "user", "content": STREAM}]
    for chunk in client.chat.completions.create(model=f"openai:{MODEL}", messages=messages, stream=True):
        yield chunk.choices[0].delta.content if chunk.choices else None


play(
    plain=plain,
    stream=lambda: heard(pieces()),
    tools=lambda: ask(TOOLS, tools=[look_up], max_turns=4),
    parallel=lambda: ask(PARALLEL, tools=[look_up], max_turns=4),
)
