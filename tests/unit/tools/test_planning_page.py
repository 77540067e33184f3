"""The planning report lists a target that was missed as missed."""

import numpy as np
import pytest

from ratchet.core.planning.off_policy import Estimate, Judgement
from tools.planning.page import (
    BASELINES,
    BEST,
    DEFAULTS,
    FIRST,
    LINUCB,
    LOGGED,
    ONLINE,
    UNFLOORED,
    CoverageResult,
    Measured,
    Phase1,
    Seed,
    page,
)

TURNED = "trained on outcomes turned round"


def measured(reward: float, cost: float = 0.1) -> Measured:
    noise = np.random.default_rng(1).standard_normal(300)
    return Measured(reward + noise, (noise > -1).astype(float), np.full(300, cost), np.full(300, 5000.0))


def judged(difference: float) -> Judgement:
    value = Estimate(difference, difference - 0.1, difference + 0.1)
    return Judgement(300, 0, 900, 300, 400.0, 1.0, 0.01, 0.0, None, value, value, value, value, value)


def seed(phase_2: float = 8.0, worse: float = -1.0) -> Seed:
    metrics = {
        f"test_{name}": 1.0
        for name in ("type_accuracy", "stop_accuracy", "dependency_f1", "selection_accuracy", "acyclicity")
    } | {"epochs": 9.0}
    names = {
        **dict.fromkeys(BASELINES, 5.0),
        FIRST: 6.0,
        BEST: 7.0,
        UNFLOORED: 7.2,
        LOGGED: phase_2,
        ONLINE: 8.0,
        LINUCB: 8.0,
    }
    rows = {name: measured(reward, 1.0 if name in (BEST, UNFLOORED) else 0.1) for name, reward in names.items()}
    first = Phase1((True,) * 9 + (False,), 0.9, metrics)
    return Seed(1, {DEFAULTS: first, "no penalty": first}, rows, {TURNED: judged(worse)})


def covered(hits: int = 960) -> CoverageResult:
    names = ("ips", "snips", "doubly_robust")
    return CoverageResult(9.0, 5000, 1000, 0, dict.fromkeys(names, hits), dict.fromkeys(names, 0.5))


SIZES = {"logged": 100, "played": 300, "on_policy": 50}


def test_a_page_of_targets_that_were_met_misses_none() -> None:
    assert "missed" not in page([seed()], covered(), SIZES, 60.0)


@pytest.mark.parametrize(
    ("one", "coverage"), [(seed(phase_2=4.0), covered()), (seed(worse=0.0), covered()), (seed(), covered(900))]
)
def test_a_target_that_was_missed_is_listed_as_missed(one: Seed, coverage: CoverageResult) -> None:
    assert "**missed**" in page([one], coverage, SIZES, 60.0)


def test_a_candidate_that_was_not_judged_is_listed_with_the_reason() -> None:
    refused = Judgement(0, 300, 0, 0, 0.0, 0.0, 0.0, 0.0, "the log is too small")
    one = seed()
    text = page([Seed(1, one.first, one.measured, {**one.judged, "other": refused})], covered(), SIZES, 60.0)
    assert "not judged: the log is too small" in text


def test_a_target_that_the_mean_alone_meets_is_not_shown() -> None:
    text = page([seed()], covered(935), SIZES, 60.0)
    assert "**not shown**" in text
    assert "missed" not in text


def test_seeds_that_plan_the_same_wordings_prove_no_more_than_one() -> None:
    line = "9 of 10 plans exact, 67% to 100% over 10 wordings"
    assert line in page([seed()], covered(), SIZES, 60.0)
    assert line.replace("9 of 10", "27 of 30") in page([seed()] * 3, covered(), SIZES, 60.0)
