"""What a failed attempt changes before the next one, by error code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from ratchet.core.contract.training import ErrorCode, Hyperparameters, TrainingConfig, TrainingRequest
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import training_problems

GIVEN = "s3"
"""The source of a dataset whose snapshot the request names."""
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
    fresh_data: bool = False
    """Whether the next attempt's data is chosen and exported again; a job that names its snapshot has no next one."""


FIRST_PASS_TOKENS, LEAST_PASS_TOKENS = 2048, 128
"""`pass_tokens` after the first failure of a job that named none, and below which another attempt is of no use."""


def _halve_batch(config: TrainingConfig) -> Hyperparameters | None:
    """Half the tokens in every pass, scoring included, and half the rows of a batch, twice as often.

    The optimizer sees the same batch. What a job named no number for has what its trainer measured, and never more.
    """
    chosen, algorithm = config.hyperparameters, ALGORITHMS[config.algorithm]
    tokens = FIRST_PASS_TOKENS if chosen.pass_tokens is None else chosen.pass_tokens // 2
    if tokens < LEAST_PASS_TOKENS:
        return None
    size = chosen.batch_size or algorithm.default_batch_size
    if size // 2 < algorithm.least_batch_size:
        return replace(chosen, pass_tokens=tokens)
    accumulation = 2 * (chosen.gradient_accumulation or 1)
    return replace(chosen, pass_tokens=tokens, batch_size=size // 2, gradient_accumulation=accumulation)


def _halve_learning_rate(config: TrainingConfig) -> Hyperparameters | None:
    """Half of the rate that was used, given or not. None for an algorithm of a package that declares no default."""
    chosen, rates = config.hyperparameters, ALGORITHMS[config.algorithm].default_learning_rates
    used = chosen.learning_rate or (rates.rate_of(chosen) if rates else None)
    return replace(chosen, learning_rate=used / 2) if used else None


EASES: Mapping[str, Ease] = {"batch_size": _halve_batch, "learning_rate": _halve_learning_rate}

DEFAULT_RETRIES: Mapping[str, RetryRule] = {
    ErrorCode.OOM: RetryRule(attempts=3, ease="batch_size"),
    ErrorCode.CONVERGENCE: RetryRule(attempts=3, ease="learning_rate", resume=False),
    ErrorCode.DATA: RetryRule(attempts=2, resume=False, fresh_data=True),
    ErrorCode.INFRA: RetryRule(attempts=4, delay_s=600.0),
    ErrorCode.TIMEOUT: RetryRule(attempts=2, delay_s=60.0),
    ErrorCode.UNKNOWN: RetryRule(attempts=2),
}
"""The same data fails the same way: a file that is gone or broken is made anew, once."""


def eased(request: TrainingRequest, rule: RetryRule) -> TrainingRequest | None:
    """The request of the next attempt, or None when the rule cannot be applied to it."""
    config = request.training_config
    if rule.fresh_data:
        chosen = replace(config.dataset, snapshot=None)
        own = replace(request, training_config=replace(config, dataset=chosen))
        return None if config.dataset.source == GIVEN else own
    if rule.ease is None:
        return request
    hyperparameters = EASES[rule.ease](config)
    if hyperparameters is None:
        return None
    easier = replace(config, hyperparameters=hyperparameters)
    # The job reports the error that happened, not the refusal of an attempt that could never run.
    return None if training_problems(easier) else replace(request, training_config=easier)
