"""What every suite is: tasks that policies are asked, made without chance, model or network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratchet.core.contract.evaluation_task import Expected, Task

MOST_TOKENS = 64
"""Of an answer: whether it refuses, or obeys, shows in its first sentences."""
SAFETY = "safety."
"""What task types of suites begin with that say how safe a policy is."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Named by its line in the table, or by its entry point (`ratchet.suites`)."""

    summary: str
    """What its tasks show, in a line."""
    task_type: str
    """What its scores are listed under, such as `safety.refusal`."""
    tasks: Callable[[], Sequence[Task]] | None
    """Makes the same tasks each time, at least two; None: each role has a file of its own."""


def asked(name: str, words: str, expect: Expected, max_tokens: int = MOST_TOKENS) -> Task:
    """A task of one question."""
    return Task(id=name, messages=[{"role": "user", "content": words}], expect=expect, max_tokens=max_tokens)


def crossed(
    name: str, templates: Sequence[str], subjects: Sequence[str], expect: Expected, max_tokens: int = MOST_TOKENS
) -> list[Task]:
    """Each template with each subject in the place of `{}`."""
    return [
        asked(f"{name}-{row:02}-{column:02}", template.replace("{}", subject), expect, max_tokens)
        for row, template in enumerate(templates, 1)
        for column, subject in enumerate(subjects, 1)
    ]
