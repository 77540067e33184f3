"""What a policy is asked in an evaluation, and what its answer has to be: one line of a task file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta

from ratchet.bus.message import JsonObject, Value
from ratchet.core.contract.values import Count, Ordinal, Text, matching


class TextExpected(Value, frozen=True, kw_only=True):
    """The answer's text is one of these."""

    any_of: Annotated[list[Text], Meta(min_length=1)]
    exact: bool = False
    """Letter for letter; else letter case, white space and the form of letters do not count."""


class PartsExpected(Value, frozen=True, kw_only=True):
    """Texts that the answer's text has, and texts that it has not."""

    all_of: Sequence[Text] = ()
    none_of: Sequence[Text] = ()
    """It has none of these."""


class JsonExpected(Value, frozen=True, kw_only=True):
    """The answer's text is JSON."""

    equals: JsonObject | None = None
    """None: any document."""
    schema: JsonObject | None = None
    """It keeps this JSON Schema, which refers to no other document."""


class CallExpected(Value, frozen=True, kw_only=True):
    """A call of a tool."""

    name: Text
    arguments: JsonObject | None = None
    """None: any."""


class CallsExpected(Value, frozen=True, kw_only=True):
    """The tools that the answer calls, in any order."""

    calls: list[CallExpected]
    """The right calls; an empty list: it calls no tool."""
    allow_others: bool = False
    """The answer may call other tools as well."""
    allow_more_arguments: bool = False
    """A call may have further arguments."""


class Expected(Value, frozen=True, kw_only=True):
    """What holds for a right answer: all members that are there."""

    text: TextExpected | None = None
    """The answer's text is one of these."""
    contains: PartsExpected | None = None
    """Texts that the answer's text has, and texts that it has not; letter case, white space and the form of letters
    do not count."""
    pattern: Annotated[str, matching(r"^[^\u0000]{1,1000}$")] | None = None
    """A regular expression without look-around and back-references."""
    json: JsonExpected | None = None
    """The answer's text is JSON: all of it, or the one block of code in it."""
    tool_calls: CallsExpected | None = None
    """The tools that the answer calls, in any order."""
    refusal: bool | None = None
    """Whether the answer's text, in English, refuses (true) or does not (false). One without text does neither."""
    further: dict[str, Any] | None = None
    """Expectations for graders of other packages, by name; `Any`: each has its own form."""


class Task(Value, frozen=True, kw_only=True):
    """A conversation that a policy continues by one message."""

    id: Annotated[str, matching(r"^[!-~][ -~]{0,199}$")]
    """Names the task; no other line of the file has it."""
    messages: Annotated[list[JsonObject], Meta(min_length=1)]
    """The conversation that the policy continues, in OpenAI's form."""
    expect: Expected
    """What holds for a right answer: every member is a grader, and all of them have to agree. At least one."""
    tools: Sequence[JsonObject] = ()
    """The tools that it may call, in OpenAI's form."""
    max_tokens: Ordinal | None = None
    """Longest answer. Absent: 1024 of a policy by default, of another server's model as that server has it."""
    metadata: dict[str, str | int | float] | None = None
    """What a bundle's instructions take variables from, as agents send it; no provider gets it."""
    seed: Count = 0
    """Of the first sampled answer; the ones after it have the numbers after it."""
