"""Grader `pattern`: a regular expression matches somewhere in the answer's text.

The engine is that of JSON Schemas in its linear mode, `base.LINEAR`.
"""

from __future__ import annotations

import jsonschema_rs

from ratchet.bus.message import JsonObject
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders.base import LINEAR, RIGHT, Grade, GradeAnswer, answer_text, wrong


def build(expected: str) -> GradeAnswer:
    """Searches with the pattern. Raises `Rejected` for one that the engine does not take."""
    try:
        schema = jsonschema_rs.Draft202012Validator({"pattern": expected}, pattern_options=LINEAR, offline=True)
    except ValueError as error:
        raise Rejected("it is no regular expression of the linear engine, or a very large one") from error

    def grade(message: JsonObject) -> Grade:
        return RIGHT if schema.is_valid(answer_text(message)) else wrong("the pattern does not match the text")

    return grade
