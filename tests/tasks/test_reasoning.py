"""reasoning-gym's questions: what is shown is right by the package's score, and the exam has no twin in training."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from tools.learning.worlds.procedural import apart
from tools.learning.worlds.reasoning import REASONING

try:
    version("reasoning-gym")
except PackageNotFoundError:
    pytest.skip("no reasoning-gym here: `make tasks`", allow_module_level=True)


@pytest.mark.parametrize("name", REASONING)
def test_exam_and_training_share_no_twin_and_what_is_shown_is_right(name: str) -> None:
    exam, learnt = apart(REASONING[name].questions())
    assert (len(exam), len(learnt)) == (400, 2600)
    assert not {question.twins for question in exam} & {question.twins for question in learnt}
    for question in (*exam[:100], *learnt[:100]):
        episode = question.task.begin()
        episode.answer(question.shown.messages[-1])
        assert episode.verdict().success, question.task.task_id


def test_a_sum_is_not_solved_by_a_number_that_contains_it() -> None:
    (question,) = apart(REASONING["chain_sum"].questions(), held_out=1, training=1)[0]
    episode = question.task.begin()
    right = question.shown.messages[-1]["content"]
    episode.answer({"role": "assistant", "content": f"1{right}"})
    assert not episode.verdict().success
    assert episode.verdict().graded is None
