"""What every grader has in common: an expectation in, a function of the policy's message out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import jsonschema_rs

from ratchet.bus.message import JsonObject
from ratchet.core.rules.chat import text_of


@dataclass(frozen=True, slots=True)
class Grade:
    """How good an answer is: 1 is right, 0 is wrong."""

    score: float
    why: str
    """In words, for people; of an answer that is not right, what it lacks."""
    calls: int = 0
    """Tool calls, as far as the grader counts them,"""
    valid_calls: int = 0
    """and those of them that name a tool with its arguments."""


class Conversation(Protocol):
    """One try of a task that takes several messages: speaks for its tools and its people, then grades."""

    def reply(self, message: JsonObject) -> Sequence[JsonObject]:
        """What follows the assistant's message, in OpenAI's form; nothing once the conversation is over."""
        ...

    def grade(self) -> Grade:
        """Of what was said and done, also where it broke off."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """What a grader makes of its expectation where a task takes several messages."""

    begin: Callable[[], Conversation]


GradeAnswer = Callable[[JsonObject], Grade]
"""Grades the assistant's message, in OpenAI's form."""
BuildGrader = Callable[[Any], GradeAnswer | Environment]
"""Makes a grader of what a task expects. Raises `Rejected` for an expectation that no answer could be compared with.

`Any`: each grader has an expectation of its own form.
"""

LINEAR = jsonschema_rs.RegexOptions(size_limit=1024 * 1024)
"""How patterns match: without look-around and back-references, so that the time grows with the text alone. The bound
on a compiled pattern, in bytes, refuses `(a{1000}){1000}` and its like."""
RIGHT = Grade(1.0, "right")


def wrong(why: str) -> Grade:
    """The grade of an answer that is not right."""
    return Grade(0.0, why)


def answer_text(message: JsonObject) -> str:
    """The text of a message, half a surrogate pair as `?`; empty where it only calls tools."""
    return text_of(message.get("content")).encode(errors="replace").decode()


def same_json(one: Any, other: Any) -> bool:
    """Whether two documents are equal as JSON: 1 is 1.0, and not true. `Any`: any document."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast("JsonObject", one), cast("JsonObject", other)
        return left.keys() == right.keys() and all(same_json(value, right[name]) for name, value in left.items())
    if isinstance(one, list) and isinstance(other, list):
        lefts, rights = cast("list[Any]", one), cast("list[Any]", other)
        return len(lefts) == len(rights) and all(map(same_json, lefts, rights))
    return one == other
