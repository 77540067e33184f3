"""Grader `contains`: texts that the answer's text has, and texts that it has not."""

from __future__ import annotations

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import PartsExpected
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders.base import RIGHT, Grade, GradeAnswer, answer_text, wrong
from ratchet.core.rules.texts import same_form


def build(expected: PartsExpected) -> GradeAnswer:
    """Looks for parts of the text. Raises `Rejected` where there is nothing to look for."""
    required, refused = ({part: same_form(part) for part in parts} for parts in (expected.all_of, expected.none_of))
    if not required and not refused:
        raise Rejected("it names no text, neither in `all_of` nor in `none_of`")
    if blank := [part for part, form in (required | refused).items() if not form]:
        raise Rejected(f"{blank[0]!r} is in every text")

    def grade(message: JsonObject) -> Grade:
        text = same_form(answer_text(message))
        missing = [part for part, form in required.items() if form not in text]
        present = [part for part, form in refused.items() if form in text]
        problems = [*(f"lacks {part!r}" for part in missing), *(f"has {part!r}" for part in present)]
        return wrong(f"the text {', '.join(problems)}") if problems else RIGHT

    return grade
