"""What a failed attempt changes before the next one, by error code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.messages.training import Hyperparameters, TrainingRequest

Ease = Callable[[Hyperparameters], Hyperparameters | None]
"""Easier hyperparameters, or None when nothing is left to ease."""


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How an error code is met."""

    attempts: int
    """Attempts in all, the first included."""
    delay_s: float = 0.0
    """Pause before the next attempt."""
    ease: str | None = None
    """Name of what is eased, a key of `EASES`."""
    resume: bool = True
    """Whether the next attempt goes on from the newest checkpoint, or starts over."""


def _halve_batch(chosen: Hyperparameters) -> Hyperparameters | None:
    """Half the rows per pass, twice the passes: the optimizer sees the same batch."""
    if chosen.batch_size is None or chosen.batch_size < 2:
        return None
    return replace(
        chosen, batch_size=chosen.batch_size // 2, gradient_accumulation=2 * (chosen.gradient_accumulation or 1)
    )


def _halve_learning_rate(chosen: Hyperparameters) -> Hyperparameters | None:
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
    easier = EASES[rule.ease](request.training_config.hyperparameters)
    if easier is None:
        return None
    return replace(request, training_config=replace(request.training_config, hyperparameters=easier))
