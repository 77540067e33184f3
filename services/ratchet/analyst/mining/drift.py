"""What differs from the window before: outcomes, inputs, and whether anybody still gives feedback.

Inputs are compared by a classifier (Lopez-Paz and Oquab, Revisiting classifier two-sample tests, arXiv:1610.06545): it
learns from the forming part which window a trajectory is from, by what is known of it before any policy answers; the
claim is that it also tells windows apart among other subjects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from ratchet.analyst.mining.associations import Table
from ratchet.analyst.mining.base import Episodes, Floats, Hypothesis
from ratchet.analyst.mining.behavior import FORMED_Z, rises
from ratchet.analyst.mining.measure import Pool
from ratchet.analyst.mining.testing import Pools
from ratchet.core.contract.learning import Trigger

WORSE = {
    "failures_rose": ("failure", 1.0),
    "reward_fell": ("reward", -1.0),
    "cost_rose": ("cost_usd", 1.0),
    "latency_rose": ("latency_ms", 1.0),
    "tokens_rose": ("tokens", 1.0),
    "calls_rose": ("calls", 1.0),
    "feedback_dried_up": ("feedback", -1.0),
}
"""Finding -> a measure, and the sign of what is worse."""
INPUTS_SHIFTED = "inputs_shifted"
INPUTS = ("task_type", "domain", "language", "length", "term", "offered")
"""What comes from outside. Documents come from retrieval, and versions from Ratchet itself."""
FEWEST = 100
"""Trajectories of each window's forming part that a classifier needs."""
STRENGTH = 0.1
"""Of the evidence against the prior (C of scikit-learn): with hundreds of words a weak prior learns noise."""
MOST_TERMS = 6


def hypotheses(before: Episodes, now: Episodes, seed: int) -> list[Hypothesis]:
    """What the forming parts of both windows suggest."""
    pool = Pools.of(before, now).forming
    return [*_worse(pool), *_inputs(before, now, seed)]


def _worse(pool: Pool) -> Iterator[Hypothesis]:
    for finding, (measure, sign) in WORSE.items():
        claim = Hypothesis("drift", finding, measure, between_windows=True)
        if sign * rises(pool, claim) >= FORMED_Z:
            yield claim


def _inputs(before: Episodes, now: Episodes, seed: int) -> Iterator[Hypothesis]:
    table = Table.of(before, now, INPUTS)
    later = int(table.later.sum())
    if min(later, len(table.later) - later) < FEWEST or not table.triggers:
        return
    learned = LogisticRegression(C=STRENGTH, class_weight="balanced", random_state=seed)
    learned.fit(table.matrix, table.later)
    weights = np.asarray(learned.coef_, dtype=np.float64).ravel()
    rising = np.argsort(-weights * np.sqrt(np.asarray(table.matrix.mean(axis=0)).ravel()), kind="stable")
    terms = tuple(table.triggers[place].value for place in rising[:MOST_TERMS] if weights[place] > 0)
    score = _Score(table.triggers, weights, float(np.asarray(learned.intercept_).ravel()[0]))
    yield Hypothesis("drift", INPUTS_SHIFTED, "inputs", between_windows=True, value=score, terms=terms)


@dataclass(frozen=True, slots=True)
class _Score:
    """How much a trajectory looks like one of the later window, 0..1."""

    triggers: Sequence[Trigger]
    weights: Floats
    """Of each trigger, in log-odds."""
    intercept: float

    def __call__(self, episodes: Episodes) -> Floats:
        odds = np.full(len(episodes), self.intercept)
        for trigger, weight in zip(self.triggers, self.weights, strict=True):
            odds[episodes.matching([trigger])] += weight
        return expit(odds)
