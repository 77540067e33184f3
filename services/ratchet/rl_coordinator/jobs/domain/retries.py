"""What a failed attempt changes before the next one, by error code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.contract.training import Hyperparameters, TrainingConfig, TrainingRequest
from ratchet.rules.algorithms import ALGORITHMS
from ratchet.rules.training_options import training_problems

Ease = Callable[[TrainingConfig], Hyperparameters | None]
"""Easier hyperparameters, or None when nothing is left to ease."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """What happens after an attempt failed with an error code."""

    attempts: int
    """Attempts in all, the first included."""
    delay_s: float = 0.0
    """Pause before the next attempt."""
    ease: str | None = None
    """What the next attempt eases, a key of `EASES`."""
    resume: bool = True
    """Whether the next attempt goes on from the newest checkpoint, or starts over."""


def _halve_batch(config: TrainingConfig) -> Hyperparameters | None:
    """Half the rows per pass, twice the passes: the optimizer sees the same batch."""
    chosen = config.hyperparameters
    size = chosen.batch_size or ALGORITHMS[config.algorithm].default_batch_size
    if size < 2:
        return None
    return replace(chosen, batch_size=size // 2, gradient_accumulation=2 * (chosen.gradient_accumulation or 1))


def _halve_learning_rate(config: TrainingConfig) -> Hyperparameters | None:
    chosen = config.hyperparameters
    if chosen.learning_rate is None:
        return None
    return replace(chosen, learning_rate=chosen.learning_rate / 2)


EASES: Mapping[str, Ease] = {"batch_size": _halve_batch, "learning_rate": _halve_learning_rate}

DEFAULT_RETRIES: Mapping[str, RetryRule] = {
    "OOM": RetryRule(attempts=3, ease="batch_size"),
    "CONVERGENCE": RetryRule(attempts=3, ease="learning_rate", resume=False),
    "INFRA": RetryRule(attempts=4, delay_s=600.0),
    "TIMEOUT": RetryRule(attempts=2, delay_s=60.0),
    "UNKNOWN": RetryRule(attempts=2),
}
"""DATA is absent: the same data fails the same way."""


def eased(request: TrainingRequest, rule: RetryRule) -> TrainingRequest | None:
    """The request of the next attempt, or None when the rule cannot be applied to it."""
    if rule.ease is None:
        return request
    config = request.training_config
    hyperparameters = EASES[rule.ease](config)
    if hyperparameters is None:
        return None
    easier = replace(config, hyperparameters=hyperparameters)
    # The job reports the error that happened, not the refusal of an attempt that could never run.
    return None if training_problems(easier) else replace(request, training_config=easier)
