"""The report: success with its interval, the paired difference, and the tasks that differ."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.core.evaluation.playing import Try
from ratchet.core.evaluation.report import difference_of, differing, summary_of
from ratchet.core.rules.intervals import paired_difference, wilson


def tries(*scores: float | None, mode: str = "greedy", number: int = 0) -> list[Try]:
    """One try of each task; None: the engine gave no answer."""
    return [
        Try(
            task=f"t{place:02}",
            mode=mode,
            number=number,
            score=score or 0.0,
            why="right" if score == 1 else f"wrong {place}",
            fault="away" if score is None else None,
            prompt_tokens=0 if score is None else 10,
            completion_tokens=0 if score is None else 5,
            latency_ms=100.0 * place,
        )
        for place, score in enumerate(scores)
    ]


def test_success_counts_answered_tasks_alone() -> None:
    summary = summary_of("support@1", "greedy", tries(1, 1, 0, None))
    assert (summary.tasks, summary.tries, summary.faults) == (3, 3, 1)
    assert summary.success == pytest.approx(2 / 3)
    assert summary.interval == wilson(2, 3)
    assert (summary.prompt_tokens, summary.completion_tokens, summary.latency_p50_ms) == (30, 15, 100.0)


def test_a_part_of_a_point_is_no_success_but_a_score() -> None:
    summary = summary_of("support@1", "greedy", tries(1, 0.5))
    assert (summary.success, summary.score) == (0.5, 0.75)


def test_several_samples_of_a_task_are_one_task() -> None:
    sampled = [*tries(1, 0, mode="sampled"), *tries(0, 0, mode="sampled", number=1)]
    summary = summary_of("support@1", "sampled", sampled)
    assert (summary.tasks, summary.tries, summary.success) == (2, 4, 0.25)
    assert summary.interval == wilson(0.5, 2), "four tries of two tasks are no four tasks"


def test_without_an_answer_nothing_is_known() -> None:
    summary = summary_of("support@1", "greedy", tries(None, None))
    assert (summary.success, summary.interval, summary.latency_p50_ms) == (None, (0.0, 1.0), None)


def test_the_difference_pairs_the_tasks_that_both_answered() -> None:
    one, other = tries(1, 1, 0, None, 1), tries(1, 0, 1, 1, 0)
    difference = difference_of("greedy", one, other)
    assert (difference.tasks, difference.better, difference.worse) == (4, 2, 1)
    assert difference.difference == 0.25
    assert difference.interval == paired_difference([1, 0, 1, 0], [1, 1, 0, 1])


def test_a_task_that_is_refused_for_both_policies_is_in_no_difference() -> None:
    def refused(*places: int) -> list[Try]:
        return [msgspec.structs.replace(one, refused=n in places) for n, one in enumerate(tries(0, 0, 0))]

    some = difference_of("greedy", refused(0, 1), refused(0))
    assert (some.tasks, some.refused_for_both) == (2, 1)
    both = [*refused(0, 1), *tries(1, number=1)]
    assert difference_of("greedy", both, refused(0, 1)).refused_for_both == 1, "one of its tries was answered"
    assert difference_of("greedy", refused(0, 1, 2), refused(0, 1, 2)).tasks == 0


def test_the_tasks_that_differ_begin_with_those_that_were_lost() -> None:
    rows = differing("greedy", tries(1, 1, 0), tries(1, 0, 1))
    assert [(row.task, row.policy, row.against, row.why) for row in rows] == [
        ("t02", 0.0, 1.0, "wrong 2"),
        ("t01", 1.0, 0.0, "wrong 1"),
    ]
