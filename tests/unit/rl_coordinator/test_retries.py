"""What the attempt after a failed one changes, and when there is nothing left to change."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.bus.schemas import load_schema
from ratchet.core.contract.training import ErrorCode, Hyperparameters, TrainingRequest
from ratchet.core.resources import resource_dir
from ratchet.core.rules.algorithms import BUILT_IN
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES, eased
from tests.support.training import config, request

CONVERGENCE = DEFAULT_RETRIES["CONVERGENCE"]
OOM = DEFAULT_RETRIES["OOM"]


def asked(algorithm: str, **hyper: Any) -> TrainingRequest:
    return request(training_config=config(algorithm=algorithm, hyperparameters=Hyperparameters(**hyper)))


def test_every_class_of_an_error_has_a_rule_and_stands_in_the_contract() -> None:
    status = load_schema(resource_dir("contracts"), "training.status.v1")
    assert status["properties"]["error"]["properties"]["code"]["enum"] == [*ErrorCode] == [*DEFAULT_RETRIES]


@pytest.mark.parametrize(
    ("given", "batch", "passes"),
    [
        (asked("dpo", batch_size=8), 4, 2),
        (asked("dpo", batch_size=8, gradient_accumulation=3), 4, 6),
        (asked("kto", batch_size=4), 2, 2),
        (asked("kto"), 8, 2),
        (asked("sft"), 8, 2),
        (asked("grpo"), 64, 2),
    ],
)
def test_out_of_memory_halves_the_batch_that_was_used_given_or_not(
    given: TrainingRequest, batch: int, passes: int
) -> None:
    again = eased(given, OOM)
    assert again is not None
    chosen = again.training_config.hyperparameters
    assert (chosen.batch_size, chosen.gradient_accumulation) == (batch, passes)


@pytest.mark.parametrize("given", [asked("sft", batch_size=1), asked("kto", batch_size=2), asked("kto", batch_size=3)])
def test_batch_refused_when_halved_stays_and_its_passes_shrink(given: TrainingRequest) -> None:
    again = eased(given, OOM)
    assert again is not None
    before, chosen = given.training_config.hyperparameters, again.training_config.hyperparameters
    assert (chosen.batch_size, chosen.gradient_accumulation) == (before.batch_size, None)
    assert chosen.pass_tokens == 2048


@pytest.mark.parametrize(("given", "tokens"), [(None, 2048), (2048, 1024), (300, 150), (200, None)])
def test_out_of_memory_halves_what_each_pass_computes_at_once(given: int | None, tokens: int | None) -> None:
    """Scoring has no batch: only this reaches it. Below a least number another attempt is of no use."""
    again = eased(asked("rloo", pass_tokens=given), OOM)
    assert (again and again.training_config.hyperparameters.pass_tokens) == tokens


@pytest.mark.parametrize(
    ("given", "rate"),
    [
        (asked("sft", learning_rate=1e-3), 5e-4),
        (asked("sft"), 1e-4),
        (asked("sft", full_finetune=True), 1e-5),
        (asked("rloo"), 1.5e-4),
        (asked("ppo", full_finetune=True), 5e-7),
        (asked("dpo"), 1e-5),
        (asked("kto"), 1e-5),
    ],
)
def test_training_that_diverged_is_tried_with_half_the_rate_used(given: TrainingRequest, rate: float) -> None:
    again = eased(given, CONVERGENCE)
    assert again is not None
    assert again.training_config.hyperparameters.learning_rate == pytest.approx(rate)


@pytest.mark.parametrize("name", [one.name for one in BUILT_IN if one.trains_weights])
def test_every_built_in_algorithm_declares_its_learning_rates(name: str) -> None:
    assert eased(asked(name), CONVERGENCE) is not None
