"""Questions that are drawn without end: the exam shares no twin with what is learnt, and typed JSON is judged whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest

from tools.learning.worlds.base import Outcome
from tools.learning.worlds.procedural import Question, apart, in_any_order
from tools.learning.worlds.single_answers import SingleAnswer, shown_text
from tools.learning.worlds.typed_json import TYPED_JSON, TYPES, questions, worth

STRING, INTEGER, DECIMAL, TRUTH, STRINGS = TYPES
KEYS = {"dish": STRING, "room": INTEGER, "tags": STRINGS}
RIGHT = '{"dish": "pearl", "room": 3, "tags": ["a"]}'


def wrong(content: str, calls: object) -> Outcome:
    """Whatever the answer."""
    return Outcome(success=False)


def sums(most: int) -> Iterator[Question]:
    """a + b and b + a, again and again."""
    for number in count():
        left, right = divmod(number * 7 % most**2, most)
        text = f"{left} + {right}"
        task = SingleAnswer(text, "sum", [], [], wrong)
        yield Question(in_any_order(text), task, shown_text(task, str(left + right)))


def test_no_question_that_is_learnt_has_a_twin_in_the_exam() -> None:
    exam, learnt = apart(sums(20), held_out=50, training=200)
    twins = {question.twins for question in exam}
    assert (len(twins), len({question.task.task_id for question in learnt})) == (50, 200)
    assert not twins & {question.twins for question in learnt}


def test_questions_that_are_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        apart(islice(sums(9), 2000), held_out=10, training=2600)


@pytest.mark.parametrize("content", [RIGHT, f" {RIGHT}\n", '{"tags":["x","y"],"room":0,"dish":""}'])
def test_an_object_with_all_keys_and_types_is_worth_everything(content: str) -> None:
    assert worth(content, KEYS) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        RIGHT[:-1],
        RIGHT + RIGHT,
        f"```json\n{RIGHT}\n```",
        f"Here it is: {RIGHT}",
        RIGHT.replace('"room": 3', '"room": 3, "room": 3'),
    ],
)
def test_what_is_no_object_alone_is_worth_nothing(content: str) -> None:
    assert worth(content, KEYS) == 0


@pytest.mark.parametrize(
    "content",
    [
        RIGHT.replace("3", '"3"'),
        RIGHT.replace("3", "3.5"),
        RIGHT.replace("3", "true"),
        RIGHT.replace('["a"]', "[]"),
        RIGHT.replace('["a"]', "[1]"),
        RIGHT.replace("}", ', "more": 1}'),
        '{"dish": "pearl", "room": 3}',
    ],
)
def test_an_object_with_one_fault_is_worth_a_part(content: str) -> None:
    assert 0.3 < worth(content, KEYS) < 1


@pytest.mark.parametrize(("kind", "value", "fits"), [(DECIMAL, 1, False), (DECIMAL, 1.0, True), (TRUTH, 1, False)])
def test_numbers_and_truths_are_apart(kind: object, value: object, fits: bool) -> None:
    assert TYPES[TYPES.index(kind)].fits(value) is fits  # pyright: ignore[reportArgumentType] - of `TYPES`


def test_every_answer_that_is_shown_is_right() -> None:
    for question in islice(questions(), 300):
        episode = question.task.begin()
        episode.answer(question.shown.messages[-1])
        assert episode.verdict() == Outcome(success=True, graded=1.0)


def test_typed_json_has_its_exam_beside_thousands_of_questions() -> None:
    exam, learnt = apart(TYPED_JSON.questions())
    assert (len(exam), len(learnt)) == (400, 2600)
