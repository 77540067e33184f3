"""What a policy is asked in an evaluation, and what its answer has to be: one line of a task file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.bus.message import JsonObject, Value


class TextExpected(Value, frozen=True, kw_only=True):
    """The answer's text is one of these."""

    any_of: list[str]
    exact: bool = False
    """Letter for letter; else letter case, white space and the form of letters do not count."""


class PartsExpected(Value, frozen=True, kw_only=True):
    """Texts that the answer's text has, and texts that it has not."""

    all_of: Sequence[str] = ()
    none_of: Sequence[str] = ()


class JsonExpected(Value, frozen=True, kw_only=True):
    """The answer's text is JSON."""

    equals: JsonObject | None = None
    """None: any document."""
    schema: JsonObject | None = None


class CallExpected(Value, frozen=True, kw_only=True):
    """A call of a tool."""

    name: str
    arguments: JsonObject | None = None
    """None: any."""


class CallsExpected(Value, frozen=True, kw_only=True):
    """The tools that the answer calls, in any order."""

    calls: list[CallExpected]
    allow_others: bool = False
    allow_more_arguments: bool = False


class Expected(Value, frozen=True, kw_only=True):
    """What holds for a right answer: all members that are there."""

    text: TextExpected | None = None
    contains: PartsExpected | None = None
    pattern: str | None = None
    """A regular expression without look-around and back-references."""
    json: JsonExpected | None = None
    tool_calls: CallsExpected | None = None
    further: dict[str, Any] | None = None
    """Expectations for graders of other packages, by name; `Any`: each has its own form."""


class Task(Value, frozen=True, kw_only=True):
    """A conversation that a policy continues by one message."""

    id: str
    messages: list[JsonObject]
    expect: Expected
    tools: Sequence[JsonObject] = ()
    max_tokens: int | None = None
    seed: int = 0
