"""Suite `instruction_following`: answers of a form that is asked for, and that words, patterns and JSON decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.core.contract.evaluation_task import Expected, JsonExpected, PartsExpected, Task, TextExpected
from ratchet.core.evaluation.suites.base import Suite, asked, crossed

_MOST_TOKENS = 128
"""Three lines of a list, with some words before that the grader counts as wrong."""
_SUBJECTS = (
    "the sea",
    "bread",
    "winter",
    "a bicycle",
    "the moon",
    "coffee",
    "a library",
    "trees",
    "music",
    "a railway station",
)


def _object(**properties: Any) -> JsonObject:  # `Any`: values of JSON
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_FORMS: Sequence[tuple[str, str, Expected]] = (
    (
        "capitals",
        "Write one sentence about {}. Use capital letters alone.",
        Expected(pattern=r"^[^a-z]*[A-Z][^a-z]*$"),
    ),
    (
        "lower-case",
        "Write one sentence about {}. Use lower-case letters alone.",
        Expected(pattern=r"^[^A-Z]*[a-z][^A-Z]*$"),
    ),
    (
        "three-bullets",
        "Name three things about {}. Write exactly three lines, each of which begins with '- ', and nothing else.",
        Expected(pattern=r"^\s*- [^\n]+\n+- [^\n]+\n+- [^\n]+\s*$"),
    ),
    ("five-words", "Describe {} in exactly five words.", Expected(pattern=r"^\s*\S+(\s+\S+){4}\s*$")),
    ("ending", "Write one sentence about {}. End your answer with the word OVER.", Expected(pattern=r"\bOVER\W*$")),
    (
        "json",
        'Answer with JSON alone: an object with the members "subject" (a text) and "letters" (an integer), about {}.',
        Expected(json=JsonExpected(schema=_object(subject={"type": "string"}, letters={"type": "integer"}))),
    ),
    (
        "words-to-use",
        "Write one sentence about {}. Use the words 'yesterday' and 'quietly' in it.",
        Expected(contains=PartsExpected(all_of=["yesterday", "quietly"])),
    ),
    ("no-comma", "Write two sentences about {} without any comma.", Expected(pattern=r"^[^,]*\w[^,]*$")),
    (
        "numbered",
        "Write two facts about {} as a numbered list with the lines '1. ...' and '2. ...', and nothing else.",
        Expected(pattern=r"^\s*1\. [^\n]+\n+2\. [^\n]+\s*$"),
    ),
)
_REPEAT = "I like {} very much."


def _tasks() -> Sequence[Task]:
    formed = [
        task for name, template, expect in _FORMS for task in crossed(name, [template], _SUBJECTS, expect, _MOST_TOKENS)
    ]
    repeated = [
        asked(
            f"repeat-{column:02}",
            f"Repeat this in exactly the same words, and write nothing else: {_REPEAT.format(subject)}",
            Expected(text=TextExpected(any_of=[_REPEAT.format(subject)])),
        )
        for column, subject in enumerate(_SUBJECTS, 1)
    ]
    return [*formed, *repeated]


SUITE = Suite(
    summary="Answers in a form that is asked for: length, letters, lists, JSON, words. The answer keeps it.",
    task_type="instruction_following",
    tasks=_tasks,
)
