"""Grader `text`: the answer's text is one of the right ones."""

from __future__ import annotations

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import TextExpected
from ratchet.core.evaluation.graders.base import RIGHT, Grade, GradeAnswer, answer_text, wrong
from ratchet.core.rules.texts import same_form


def build(expected: TextExpected) -> GradeAnswer:
    """Compares whole texts."""
    form = str if expected.exact else same_form
    texts = {form(text) for text in expected.any_of}

    def grade(message: JsonObject) -> Grade:
        return RIGHT if form(answer_text(message)) in texts else wrong("the text is another one")

    return grade
