"""An exam counts each mode and each kind by itself, and survives its file."""

from __future__ import annotations

from pathlib import Path

from ratchet.local.demo.exams import Exam, Proportion, read_exam, read_exams, write_exam
from ratchet_helpdesk.heldout import GREEDY, SAMPLED, Answer
from ratchet_helpdesk.world import HELD_OUT, MISJUDGED, draw_tasks, kind_of


def an_answer(kind: str, mode: str, *, success: bool, valid: int = 2) -> Answer:
    return Answer(task="t", kind=kind, mode=mode, success=success, calls=2, valid_calls=valid)


EXAM = Exam(
    [
        an_answer("refund too late", GREEDY, success=True),
        an_answer("refund too late", SAMPLED, success=False, valid=1),
        an_answer("report as wished", GREEDY, success=False),
        an_answer("report as wished", SAMPLED, success=True),
        an_answer("report as wished", SAMPLED, success=True),
    ]
)


def test_modes_and_kinds_are_counted_apart() -> None:
    assert EXAM.success(GREEDY) == Proportion(1, 2)
    assert EXAM.success(SAMPLED) == Proportion(2, 3)
    assert EXAM.success(GREEDY, MISJUDGED) == Proportion(1, 1)
    assert EXAM.success(SAMPLED, MISJUDGED) == Proportion(0, 1)
    assert EXAM.success(SAMPLED, {"report as wished"}) == Proportion(2, 2)
    assert EXAM.kinds == ["refund too late", "report as wished"]


def test_what_never_came_up_was_not_measured() -> None:
    assert EXAM.success(GREEDY, {"stop as wished"}) is None
    assert Exam([]).valid_calls() is None


def test_valid_calls_are_counted_over_both_modes() -> None:
    assert EXAM.valid_calls() == Proportion(9, 10)


def test_an_exam_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "exams"
    assert read_exam(folder, "helpdesk@1") is None
    write_exam(folder, "helpdesk@1", EXAM)
    assert read_exam(folder, "helpdesk@1") == EXAM
    assert read_exams(folder, "helpdesk", [1, 2]) == {1: EXAM}


def test_misjudged_kinds_are_kinds_of_the_exam() -> None:
    assert {kind_of(task) for task in draw_tasks(HELD_OUT, 500, 11)} >= MISJUDGED
