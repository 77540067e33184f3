"""The graders: what a task expects -> whether an answer is right. A new one is one file and one line, or a package."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected
from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.evaluation.graders import contains, json_document, pattern, text, tool_calls
from ratchet.core.evaluation.graders.base import BuildGrader, Grade, GradeAnswer
from ratchet.core.plugins import PluginTable, callable_with

GRADERS: PluginTable[BuildGrader] = PluginTable(
    "ratchet.graders",
    "grader",
    {
        "text": text.build,
        "contains": contains.build,
        "pattern": pattern.build,
        "json": json_document.build,
        "tool_calls": tool_calls.build,
    },
    callable_with(1),
)
"""By the member of `expect` that a grader reads; those of other packages read a member of `expect.further`."""


def build_grader(expected: Expected) -> GradeAnswer:
    """One grader of all that a task expects: the lowest grade counts.

    Raises `Rejected` for a task that expects nothing, for an expectation that does not fit its grader, and for a grader
    that no installed package brings.
    """
    given = {name: getattr(expected, name) for name in GRADERS.built_in}
    expectations = {name: value for name, value in given.items() if value is not None}
    further = expected.further or {}
    if shipped := further.keys() & GRADERS.built_in.keys():
        raise Rejected(f"/expect/further/{min(shipped)}: this grader ships, so it is a member of `expect` itself")
    graders = {name: _built(name, value) for name, value in (expectations | further).items()}
    if not graders:
        raise Rejected("/expect: names no grader, so every answer would be right")

    def grade(message: JsonObject) -> Grade:
        return _lowest({name: one(message) for name, one in graders.items()})

    return grade


def _built(name: str, expectation: object) -> GradeAnswer:
    if name not in GRADERS:
        raise Rejected(f"/expect/further/{name}: no package brings this grader (`ratchet plugins` lists them)")
    try:
        return GRADERS[name](expectation)
    except (Rejected, ConfigError) as error:
        raise Rejected(f"/expect/{name}: {error}") from error


def _lowest(grades: Mapping[str, Grade]) -> Grade:
    name, lowest = min(grades.items(), key=lambda one: one[1].score)
    return lowest if lowest.score >= 1 else Grade(lowest.score, f"{name}: {lowest.why}")


__all__ = ["GRADERS", "build_grader"]
