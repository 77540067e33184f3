"""Every term of a loss that can be configured moves the gradient: none is there in name only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ratchet.trainer_worker.training.learner.advantages import gae
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Objective, Tokens, policy_loss
from ratchet.trainer_worker.training.learner.preferences import KtoWeights, PairLogprobs, dpo_loss, kto_loss
from ratchet.trainer_worker.training.learner.rewards import reward_loss
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import FixedRows
from ratchet.trainer_worker.training.learner.update import Update, UpdateOptions
from tests.support.trainer_runs import toy_model

LEAST = 1e-4
"""Two gradients that differ by less are the same."""


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def gradient(loss_of: Callable[[Tensor], Tensor], *values: float) -> Tensor:
    given = torch.tensor(values, requires_grad=True)
    loss_of(given).sum().backward()
    assert given.grad is not None
    return given.grad


# ------------------------------------------------------------------------------------------------------------- pairs
def dpo(beta: float = 0.5, smoothing: float = 0.0) -> Tensor:
    def loss(given: Tensor) -> Tensor:
        reference = torch.tensor([-11.0]), torch.tensor([-11.5])
        return dpo_loss(PairLogprobs(given[:1], given[1:], *reference), beta, smoothing).loss_P

    return gradient(loss, -10.0, -12.0)


def kto(**weights: float) -> Tensor:
    def loss(given: Tensor) -> Tensor:
        liked = torch.tensor([True, False])
        return kto_loss(given, liked, torch.tensor([0.75]), KtoWeights(**{"beta": 0.5, **weights})).loss_L

    return gradient(loss, 1.0, -0.5)


def scores(center: float = 0.0) -> Tensor:
    return gradient(lambda given: reward_loss(given[:1], given[1:], center).loss_P, 1.0, -0.25)


@pytest.mark.parametrize(
    ("plain", "changed"),
    [
        (dpo(), dpo(beta=0.1)),
        (dpo(), dpo(smoothing=0.1)),
        (kto(), kto(beta=0.1)),
        (kto(), kto(desirable=2.0)),
        (kto(), kto(undesirable=2.0)),
        (scores(), scores(center=0.01)),
    ],
    ids=["dpo beta", "label_smoothing", "kto beta", "desirable", "undesirable", "center_rewards_coefficient"],
)
def test_a_term_of_a_preference_loss_has_a_gradient(plain: Tensor, changed: Tensor) -> None:
    assert float(plain.abs().min()) > LEAST
    assert difference(plain, changed) > LEAST


def test_centre_pulls_both_rewards_alike_and_preferences_apart() -> None:
    preferences, both = scores(), scores(center=1.0)
    assert preferences.sum().item() == pytest.approx(0.0, abs=1e-6)
    assert (both - preferences).tolist() == pytest.approx([2 * 0.75] * 2, abs=1e-5)


# --------------------------------------------------------------------------------------------------- policy gradient
PLAIN = Objective(importance_cap=None, rejection_window=None, kl_beta=0.0)


def surrogate(objective: Objective) -> Tensor:
    """Ratios on both sides of every clip, and rows that a window of .5 to 1.5 parts."""

    def loss(given: Tensor) -> Tensor:
        tokens = Tokens(
            logprobs_N=given,
            proximal_N=torch.tensor([-1.0, -1.0, -1.0, -1.0]),
            behavior_N=torch.tensor([-1.5, -1.0, -3.0, -2.0]),
            advantages_N=torch.tensor([1.0, -0.5, 1.0, -1.0]),
            weights_N=torch.full((4,), 0.25),
            row_N=torch.tensor([0, 0, 1, 1]),
            rows=2,
            reference_N=torch.tensor([-2.0, -0.5, -1.5, -1.0]),
        )
        return policy_loss(tokens, objective).value

    return gradient(loss, -0.85, -1.4, -0.9, -1.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"kl_beta": 0.1},
        {"clip_low": 0.5},
        {"clip_high": 0.05},
        {"importance_cap": 2.0},
        {"rejection_window": (0.5, 2.0)},
        {"ratio": "sequence"},
        {"surrogate": "cispo"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_term_of_the_policy_objective_changes_the_gradient(changes: dict[str, Any]) -> None:
    assert difference(surrogate(PLAIN), surrogate(replace(PLAIN, **changes))) > LEAST


def entropy_gradient(coefficient: float) -> Tensor:
    """Of one train step of the toy agent."""
    model = toy_model(1)
    rows = [Row.of(f"t{n}", [1, 4 + n, 5, 6], [False, False, True, True], -2.0) for n in range(2)]
    scorer = Scorer(model)
    with torch.no_grad():
        parts = [scorer.score([row]) for row in rows]
    columns = [part.logprobs_N for part in parts], [torch.ones(2), -torch.ones(2)], [part.entropy_N for part in parts]
    update = Update(
        scorer,
        FixedRows(rows, *columns, None),
        UpdateOptions(1e-3, 2, 1, entropy_coefficient=coefficient, max_grad_norm=1e9),
    )
    update.measure()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def test_the_entropy_term_has_a_gradient() -> None:
    assert difference(entropy_gradient(0.0), entropy_gradient(0.1)) > LEAST


@pytest.mark.parametrize("changes", [{"gamma": 0.5}, {"gae_lambda": 0.5}], ids=lambda changes: next(iter(changes)))
def test_the_critics_discounts_change_advantages(changes: dict[str, float]) -> None:
    plain = {"gamma": 1.0, "gae_lambda": 1.0}
    values = [0.2, 0.4, 0.1]
    assert (
        difference(torch.tensor(gae(values, 1.0, **plain)), torch.tensor(gae(values, 1.0, **{**plain, **changes})))
        > LEAST
    )


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
        learning_rate=3e-3, batch_size=4, epochs=1, ramp_steps=1, entropy_coefficient=coefficient, objective=objective
    )
    return Update(scorer, fixed, options)


def test_entropy_bonus_has_a_gradient_and_makes_the_policy_less_certain() -> None:
    update = without_advantages(0.5)
    measured = update.measure()
    assert measured.metrics["loss"] == 0.0
    assert measured.metrics["grad_norm"] > 1e-4
    update.apply()
    assert update.measure_end().metrics["policy_entropy"] > measured.metrics["policy_entropy"] + 1e-4


def test_without_a_coefficient_the_entropy_teaches_nothing() -> None:
    assert without_advantages(0.0).measure().metrics["grad_norm"] == 0.0
