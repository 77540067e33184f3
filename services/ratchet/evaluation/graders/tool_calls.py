"""Grader `tool_calls`: the answer calls the right tools with the right arguments, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.contract.evaluation_task import CallExpected, CallsExpected
from ratchet.evaluation.graders.base import RIGHT, Grade, GradeAnswer, same_json, wrong

MOST_CALLS = 256
"""Of one answer: more are no answer to any task."""


def build(expected: CallsExpected) -> GradeAnswer:
    """Finds a call of the answer for each right one, those with the most arguments first."""
    ordered = sorted(expected.calls, key=lambda call: -len(call.arguments or {}))

    def grade(message: JsonObject) -> Grade:
        made = _calls_of(message)
        if len(made) > MOST_CALLS:
            return wrong(f"the answer calls {len(made)} tools")
        missing: list[str] = []
        for call in ordered:
            place = _place_of(call, made, more=expected.allow_more_arguments)
            if place is None:
                missing.append(call.name)
            else:
                del made[place]
        others = [] if expected.allow_others else [name for name, _ in made]
        problems = [*(f"lacks the call of {name}" for name in missing), *(f"calls {name[:80]}" for name in others)]
        return wrong(f"the answer {', '.join(problems)}") if problems else RIGHT

    return grade


def _place_of(call: CallExpected, made: Sequence[tuple[str, Any]], *, more: bool) -> int | None:
    for place, (name, arguments) in enumerate(made):
        if name == call.name and (call.arguments is None or _fit(call.arguments, arguments, more=more)):
            return place
    return None


def _fit(right: JsonObject, made: Any, *, more: bool) -> bool:
    """Whether arguments are the right ones; None are those that were no JSON object."""
    if not isinstance(made, dict):
        return False
    given = cast("JsonObject", made)
    names = right.keys() <= given.keys() if more else right.keys() == given.keys()
    return names and all(same_json(value, given[name]) for name, value in right.items())


def _calls_of(message: JsonObject) -> list[tuple[str, Any]]:
    """Name and arguments of each call; None for arguments that cannot be read. `Any`: what the model wrote."""
    calls = _objects(message.get("tool_calls"))
    functions = _objects([call.get("function") for call in calls])
    return [(str(function.get("name")), _arguments(function.get("arguments"))) for function in functions]


def _objects(listed: object) -> list[JsonObject]:
    """The objects of a list; none of what is no list."""
    parts = cast("list[object]", listed) if isinstance(listed, list) else []
    return [cast("JsonObject", part) for part in parts if isinstance(part, dict)]


def _arguments(text: object) -> object:
    if not isinstance(text, str):
        return text
    try:
        return msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
