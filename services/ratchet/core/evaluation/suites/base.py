"""What every suite is: tasks that policies of any role are asked, made without chance, model or network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected, Task

MOST_TOKENS = 64
"""Of an answer: whether it refuses, or obeys, shows in its first sentences."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Named by its line in the table, or by its entry point (`ratchet.suites`)."""

    summary: str
    """What its tasks show, in a line."""
    task_type: str
    """What its scores are listed under, such as `safety.refusal`."""
    tasks: Callable[[], Sequence[Task]]
    """Makes the same tasks each time, at least two."""


def asked(name: str, words: str, expect: Expected, before: Sequence[JsonObject] = ()) -> Task:
    """A task of one question, after the messages `before`."""
    return Task(id=name, messages=[*before, {"role": "user", "content": words}], expect=expect, max_tokens=MOST_TOKENS)


def crossed(name: str, templates: Sequence[str], subjects: Sequence[str], expect: Expected) -> list[Task]:
    """Each template with each subject in the place of `{}`."""
    return [
        asked(f"{name}-{row:02}-{column:02}", template.replace("{}", subject), expect)
        for row, template in enumerate(templates, 1)
        for column, subject in enumerate(subjects, 1)
    ]
