"""Grader `json`: the answer's text is JSON that equals a document, or keeps a schema."""

from __future__ import annotations

import re

import jsonschema_rs
import msgspec

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import JsonExpected
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders.base import LINEAR, RIGHT, Grade, GradeAnswer, answer_text, same_json, wrong

_BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
"""Of code: the only one in a text counts for all of it."""


def build(expected: JsonExpected) -> GradeAnswer:
    """Reads the text as JSON. Raises `Rejected` for an invalid schema."""
    schema = None
    if expected.schema is not None:
        try:
            schema = jsonschema_rs.Draft202012Validator(expected.schema, pattern_options=LINEAR, offline=True)
        except (ValueError, RecursionError) as error:
            raise Rejected(f"`schema` is no JSON Schema by itself: {str(error).splitlines()[0][:200]}") from error

    def grade(message: JsonObject) -> Grade:
        text = answer_text(message)
        blocks = _BLOCK.findall(text)
        try:
            document = msgspec.json.decode(blocks[0] if len(blocks) == 1 else text)
            if expected.equals is not None and not same_json(document, expected.equals):
                return wrong("the JSON is another document")
            if schema is not None and not schema.is_valid(document):
                return wrong("the JSON does not keep the schema")
        except (msgspec.DecodeError, RecursionError, ValueError):
            return wrong("the text is no JSON")
        return RIGHT

    return grade
