"""Instructor: structured output by a forced tool, and a plain call."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from playing import BASE_URL, KEY, MODEL, PLAIN, RUN, SCHEMA, play
from pydantic import BaseModel

# guide
client = instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key=KEY))
named = instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key=KEY, default_headers=RUN))
# end


class Trip(BaseModel):
    city: str
    days: int


def plain() -> str:
    messages: list[Any] = [{"role": "user", "content": PLAIN}]
    answer = named.chat.completions.create(model=MODEL, messages=messages, response_model=None)
    return answer.choices[0].message.content


def schema() -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": SCHEMA}]
    return client.chat.completions.create(model=MODEL, messages=messages, response_model=Trip).model_dump()


play(plain=plain, schema=schema)
