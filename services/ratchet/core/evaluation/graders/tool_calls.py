"""Grader `tool_calls`: the answer calls the right tools with the right arguments, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import CallsExpected
from ratchet.core.evaluation.graders.base import RIGHT, Grade, GradeAnswer, same_json, wrong

MOST_CALLS = 256
"""Of one answer: more are no answer to any task."""


def build(expected: CallsExpected) -> GradeAnswer:
    """Pairs the right calls with calls of the answer, as many as can be: a made call may fit several right ones."""
    more = expected.allow_more_arguments

    def grade(message: JsonObject) -> Grade:
        # Name and arguments of each call; None for arguments that cannot be read.
        made: list[tuple[str, Any]] = []
        for function in _objects([call.get("function") for call in _objects(message.get("tool_calls"))]):
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                try:
                    arguments = msgspec.json.decode(arguments or "{}")
                except (msgspec.DecodeError, RecursionError, ValueError):
                    arguments = None
            made.append((str(function.get("name")), arguments))
        if len(made) > MOST_CALLS:
            return wrong(f"the answer calls {len(made)} tools")
        fitting = [
            [
                place
                for place, (name, arguments) in enumerate(made)
                if name == call.name and (call.arguments is None or _fit(call.arguments, arguments, more=more))
            ]
            for call in expected.calls
        ]
        taken = _matched(fitting)
        missing = [call.name for n, call in enumerate(expected.calls) if n not in taken.values()]
        others = [] if expected.allow_others else [name for n, (name, _) in enumerate(made) if n not in taken]
        problems = [*(f"lacks the call of {name}" for name in missing), *(f"calls {name[:80]}" for name in others)]
        return wrong(f"the answer {', '.join(problems)}") if problems else RIGHT

    return grade


def _matched(fitting: Sequence[Sequence[int]]) -> dict[int, int]:
    """A largest pairing, the right call by the made one (Kuhn 1955): a call gives its place up where it finds another.

    A chain of such calls is no longer than the calls that were made, `MOST_CALLS`.
    """
    taken: dict[int, int] = {}

    def pair(call: int, tried: set[int]) -> bool:
        for place in fitting[call]:
            if place not in tried:
                tried.add(place)
                if place not in taken or pair(taken[place], tried):
                    taken[place] = call
                    return True
        return False

    for call in range(len(fitting)):
        pair(call, set())
    return taken


def _fit(right: JsonObject, made: Any, *, more: bool) -> bool:
    """Whether arguments are the right ones; None are those that were no JSON object."""
    if not isinstance(made, dict):
        return False
    given = cast("JsonObject", made)
    names = right.keys() <= given.keys() if more else right.keys() == given.keys()
    return names and all(same_json(value, given[name]) for name, value in right.items())


def _objects(listed: object) -> list[JsonObject]:
    """The objects of a list; none of what is no list."""
    parts = cast("list[object]", listed) if isinstance(listed, list) else []
    return [cast("JsonObject", part) for part in parts if isinstance(part, dict)]
