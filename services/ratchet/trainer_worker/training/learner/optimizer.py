"""What every loop learns with: AdamW, and the learning rate of each train step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ratchet.bus.message import JsonObject
from ratchet.core.rules.training_options import CONSTANT, COSINE, LINEAR, ramp_problem
from ratchet.trainer_worker.errors import NoGradient

ADAM_BETAS = (0.9, 0.98)
LEAST_GRADIENT = 1e-9
"""A tenth of what AdamW adds to the denominator of its step: by a smaller one no weight moves a tenth of its rate."""
FIRST_STEPS = 10
"""In one of which the gradient is no accident, as where the advantages of a small batch cancel out."""
MIN_RATE = 0.1
"""Where a falling learning rate is when all train steps are done, as a share of its peak."""
_LEFT: Mapping[str, Callable[[float], float]] = {
    LINEAR: lambda done: 1 - done,
    COSINE: lambda done: (1 + math.cos(math.pi * done)) / 2,
    CONSTANT: lambda _: 1.0,
}
"""Share of the fall that is left, from the share of the train steps that are done."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A ramp up to the learning rate, then how it falls. Adam starts fresh in every job."""

    scheduler: str
    warmup_steps: int
    """The train step that has the full learning rate; 0 is as good as 1."""
    total: int
    """Train steps of the job."""

    @classmethod
    def of(cls, scheduler: str, asked: int | None, total: int, most: int) -> Schedule:
        """Where a job names no ramp it is a tenth of its train steps, and no more than `most`.

        Raises `ValueError` for one that is as long as the job.
        """
        if problem := ramp_problem(asked, total):
            raise ValueError(problem)
        return cls(scheduler, min(most, total // 10) if asked is None else asked, total)

    def share(self, number: int) -> float:
        """Of the learning rate, at train step `number` (counted from 1)."""
        peak = max(1, self.warmup_steps)
        if number < peak:
            return number / peak
        done = (number - peak) / (self.total - peak + 1)
        return MIN_RATE + (1 - MIN_RATE) * _LEFT[self.scheduler](done)

    @property
    def mean_share(self) -> float:
        """Of the learning rate, over all train steps."""
        return statistics.fmean(self.share(number) for number in range(1, self.total + 1))

    def effective(self, learning_rate: float) -> JsonObject:
        """The hyperparameters of a job with this peak."""
        return {
            "learning_rate": learning_rate,
            "mean_learning_rate": learning_rate * self.mean_share,
            "warmup_steps": self.warmup_steps,
            "lr_scheduler": self.scheduler,
            "min_lr_rate": None if self.scheduler == CONSTANT else MIN_RATE,
        }


def optimizer_of(parameters: Iterable[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Biases and scales of norms do not decay."""
    learns = list(parameters)
    matrices = [parameter for parameter in learns if parameter.dim() > 1]
    vectors = [parameter for parameter in learns if parameter.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=rate,
        betas=ADAM_BETAS,
        fused=True,
    )


@dataclass(slots=True)
class FirstGradients:
    """Whether a training has any gradient: one that has none would take all its train steps and move no weight."""

    largest: float = 0.0

    def add(self, number: int, total: int, norm: float) -> None:
        """The norm of a train step's gradient, as it is clipped. Raises `NoGradient`."""
        self.largest = max(self.largest, norm)
        if number == min(total, FIRST_STEPS) and self.largest < LEAST_GRADIENT:
            raise NoGradient(number, self.largest)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate of the next train step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
