"""Held-out tasks: reading results, the paired bound, and how often an equal policy passes."""

from __future__ import annotations

import random

import pytest

from ratchet.canary_deployer.domain.paired import Played, compare, paired_differences, read_results
from ratchet.canary_deployer.gates.heldout_tasks import CONFIDENCE, MARGIN
from ratchet.canary_deployer.settings import Settings


def test_results_are_one_json_line_per_task() -> None:
    played = read_results(
        [
            '{"task": "a", "success": true, "score": 0.5}',
            "",
            '{"task": "b", "success": false}',
        ]
    )
    assert played.scores == {"a": 0.5, "b": 0.0}
    assert (played.tries, played.successes, played.malformed) == (2, 1, 0)


@pytest.mark.parametrize(
    "line",
    [
        "warming up ...",
        "[1, 2]",
        '{"task": "a"}',
        '{"task": "a", "success": "yes"}',
        '{"task": "a", "success": true, "score": 1.5}',
        '{"task": "", "success": true}',
        '{"task": "a", "success": tr',
    ],
)
def test_every_other_line_counts_as_malformed(line: str) -> None:
    played = read_results([line, '{"task": "b", "success": true}'])
    assert (played.malformed, played.tries) == (1, 1)


def test_several_tries_of_a_task_are_averaged() -> None:
    played = read_results(['{"task": "a", "success": true}', '{"task": "a", "success": false}'])
    assert (played.scores, played.tries) == ({"a": 0.5}, 2)


def test_a_task_that_only_stable_finished_is_lost_for_the_candidate() -> None:
    assert paired_differences(Played({"a": 1.0, "c": 1.0}), Played({"a": 0.5, "b": 1.0})) == [0.5, -1.0]


def test_the_bound_is_that_of_bonett_and_price() -> None:
    """Their formula on counts: 12 tasks won, 5 lost, 83 alike."""
    comparison = compare([1.0] * 12 + [-1.0] * 5 + [0.0] * 83, 0.975, 0.05)
    won, lost = 13 / 102, 6 / 102
    error = ((won + lost - (won - lost) ** 2) / 102) ** 0.5
    assert comparison.standard_error == pytest.approx(error)
    assert comparison.lower_bound == pytest.approx(won - lost - 1.959964 * error, abs=1e-6)
    assert comparison.difference == 0.07


def test_few_tasks_prove_nothing_even_if_all_are_alike() -> None:
    assert not compare([0.0] * 5, CONFIDENCE, MARGIN).passed
    assert compare([0.0] * 5, CONFIDENCE, MARGIN).too_few_tasks
    assert compare([0.0] * 400, CONFIDENCE, MARGIN).passed


def pass_rate(tasks: int, stable: float, candidate: float, runs: int = 400) -> float:
    """How often a candidate passes when both policies draw their successes independently: the widest case."""
    draw = random.Random(5)
    passed = 0
    for _ in range(runs):
        wins = [(draw.random() < candidate) - (draw.random() < stable) for _ in range(tasks)]
        passed += compare([float(win) for win in wins], CONFIDENCE, MARGIN).passed
    return passed / runs


@pytest.mark.parametrize("success", [0.5, 0.8])
def test_policy_equal_to_stable_usually_passes_the_default_tasks(success: float) -> None:
    assert pass_rate(Settings().heldout_tasks, success, success) >= 0.65


def test_a_policy_that_is_clearly_worse_practically_never_passes() -> None:
    assert pass_rate(Settings().heldout_tasks, 0.8, 0.6) == 0.0
    assert pass_rate(100, 0.8, 0.6) <= 0.01


def test_the_bound_covers_the_truth_at_its_confidence() -> None:
    """A candidate that is worse by exactly the margin passes in at most 1 - confidence of all runs."""
    assert pass_rate(200, 0.8, 0.75) <= 1 - CONFIDENCE + 0.06


def test_the_evidence_estimates_how_often_an_equal_policy_passes() -> None:
    draw = random.Random(6)
    differences = [float((draw.random() < 0.8) - (draw.random() < 0.8)) for _ in range(400)]
    estimated = compare(differences, CONFIDENCE, MARGIN).pass_probability_if_equal
    assert estimated == pytest.approx(pass_rate(400, 0.8, 0.8), abs=0.08)
