"""What the attempt after a failed one changes, and when there is nothing left to change."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contract.training import Hyperparameters, TrainingRequest
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES, eased
from tests.support.training import config, request

OOM = DEFAULT_RETRIES["OOM"]


def asked(algorithm: str, **hyper: Any) -> TrainingRequest:
    return request(training_config=config(algorithm=algorithm, hyperparameters=Hyperparameters(**hyper)))


@pytest.mark.parametrize(
    ("given", "batch", "passes"),
    [
        (asked("dpo", batch_size=8), 4, 2),
        (asked("dpo", batch_size=8, gradient_accumulation=3), 4, 6),
        (asked("kto", batch_size=4), 2, 2),
        (asked("kto"), 8, 2),
        (asked("sft"), 8, 2),
        (asked("grpo"), 16, 2),
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
def test_nothing_is_tried_again_with_a_batch_that_would_be_refused(given: TrainingRequest) -> None:
    assert eased(given, OOM) is None
