"""A train step of a policy gradient: what the entropy bonus alone teaches."""

from __future__ import annotations

import torch

from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Objective
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import FixedRows
from ratchet.trainer_worker.training.learner.update import Update, UpdateOptions
from tests.support.trainer_runs import toy_model

ROWS = [Row.of(f"t{n}", [1, 3 + n, 2, 4, 5 + n], [False, False, False, True, True]) for n in range(4)]


def without_advantages(coefficient: float) -> Update:
    """Nothing but the entropy is left to learn from."""
    scorer = Scorer(toy_model(0))
    with torch.no_grad():
        scores = scorer.score(ROWS)
    proximal = list(scores.logprobs_N.split(2))
    fixed = FixedRows(ROWS, proximal, [torch.zeros(2)] * 4, list(scores.entropy_N.split(2)))
    # The logged log-probabilities are zeros, so nothing is corrected for another policy.
    objective = Objective(importance_cap=None, rejection_window=None, kl_beta=0.0)
    options = UpdateOptions(
        learning_rate=3e-3, batch_size=4, ramp_steps=1, entropy_coefficient=coefficient, objective=objective
    )
    return Update(scorer, fixed, options)


def test_the_entropy_bonus_has_a_gradient_and_makes_the_policy_less_certain() -> None:
    update = without_advantages(0.5)
    measured = update.measure()
    assert measured.metrics["loss"] == 0.0
    assert measured.metrics["grad_norm"] > 1e-4
    update.apply()
    assert update.measure_end().metrics["policy_entropy"] > measured.metrics["policy_entropy"] + 1e-4


def test_without_a_coefficient_the_entropy_teaches_nothing() -> None:
    assert without_advantages(0.0).measure().metrics["grad_norm"] == 0.0
