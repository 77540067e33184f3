"""The graders: what a task expects -> whether an answer is right. A new one is one file and one line, or a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected
from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.evaluation.graders import contains, json_document, pattern, refusal, text, tool_calls
from ratchet.core.evaluation.graders.base import BuildGrader, Conversation, Environment, Grade, GradeAnswer
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
        "refusal": refusal.build,
    },
    callable_with(1),
)
"""By the member of `expect` that a grader reads; those of other packages read a member of `expect.further`."""


class _OneAnswer:
    """A `Conversation` of one message: the lowest grade counts."""

    def __init__(self, graders: Mapping[str, GradeAnswer]) -> None:
        self._graders = graders
        self._message: JsonObject = {}

    def reply(self, message: JsonObject) -> Sequence[JsonObject]:
        self._message = message
        return ()

    def grade(self) -> Grade:
        grades = {name: grade(self._message) for name, grade in self._graders.items()}
        name, lowest = min(grades.items(), key=lambda named: named[1].score)
        return lowest if lowest.score >= 1 else replace(lowest, why=f"{name}: {lowest.why}")


def build_grader(expected: Expected) -> Callable[[], Conversation]:
    """Begins a try of a task that expects this.

    Raises `Rejected` for a task that expects nothing, for an expectation that does not fit its grader, for a grader
    that no installed package brings, and for an environment that is not the only grader.
    """
    given = {name: getattr(expected, name) for name in GRADERS.built_in}
    expectations = {name: value for name, value in given.items() if value is not None}
    further = expected.further or {}
    if shipped := further.keys() & GRADERS.built_in.keys():
        raise Rejected(f"/expect/further/{min(shipped)}: this grader ships, so it is a member of `expect` itself")
    built = {name: _built(name, value) for name, value in (expectations | further).items()}
    if not built:
        raise Rejected("/expect: names no grader, so every answer would be right")
    of_answers: dict[str, GradeAnswer] = {}
    for name, grader in built.items():
        if not isinstance(grader, Environment):
            of_answers[name] = grader
        elif len(built) > 1:
            raise Rejected(f"/expect/further/{name}: grades a whole conversation, so it stands alone")
        else:
            return grader.begin
    return partial(_OneAnswer, of_answers)


def _built(name: str, expectation: object) -> GradeAnswer | Environment:
    if name not in GRADERS:
        raise Rejected(f"/expect/further/{name}: no package brings this grader (`ratchet plugins` lists them)")
    try:
        return GRADERS[name](expectation)
    except (Rejected, ConfigError) as error:
        raise Rejected(f"/expect/{name}: {error}") from error


__all__ = ["GRADERS", "build_grader"]
