"""Whether a policy is still healthy while it trains: the figures of every train step against limits.

A figure of a train step is measured before its update, so it is of the weights that the step before has made.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from ratchet.core.contract.training import HealthLimits, HealthStop

NORMS, LEAST_NORMS = 50, 5
"""Gradient norms that are remembered, and how many a new one can be compared with."""
SIGMAS = 4.0
"""Standard errors from 0 that a correlation must be before it is one."""
LEAST_TRAJECTORIES = 16
"""A correlation over fewer says nothing."""


class Dataclass(Protocol):
    """Any class that `dataclass` made."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # `Any`: fields of every type


L = TypeVar("L", bound=Dataclass)


def asked_limits(kind: type[L], asked: HealthLimits | None) -> L | None:
    """What a job asks for, as a dataclass of limits that has defaults; None when it asks for no stops."""
    if asked is not None and not asked.enabled:
        return None
    chosen = {limit.name: getattr(asked, limit.name, None) for limit in fields(kind)}
    return kind(**{name: value for name, value in chosen.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Limits:
    """See `HealthLimits`; the defaults are those of the trainer."""

    min_ess: float = 0.1
    max_kl: float = 1.0
    max_entropy_rise: float = 1.0
    min_entropy_share: float = 0.001
    max_gradient_growth: float = 100.0
    independent_metric: str | None = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is judged of a train step; absent where an algorithm does not measure it."""

    ess: float | None = None
    """Effective sample size against the policy that wrote the data."""
    start_ess: float | None = None
    """The same, of the same tokens, before the first train step."""
    approx_kl: float | None = None
    entropy: float | None = None
    start_entropy: float | None = None
    """Of the same tokens before the first train step."""
    grad_norm: float | None = None


@dataclass(slots=True)
class Health:
    """Judges train steps one after the other. Without limits everything is healthy."""

    limits: Limits | None
    norms: list[float] = field(default_factory=list[float])
    """The newest gradient norms."""

    def judge(self, step: int, vitals: Vitals, drift: Drift | None = None) -> HealthStop | None:
        """The first figure of train step `step` that is beyond its limit, if any; else remember the step."""
        if self.limits is None:
            return None
        for figure, value, limit, is_low in self._figures(self.limits, vitals, drift):
            if value < limit if is_low else value > limit:
                return HealthStop(figure=figure, step=step, value=value, limit=limit)
        if vitals.grad_norm:
            self.norms = [*self.norms, vitals.grad_norm][-NORMS:]
        return None

    def _figures(self, limits: Limits, vitals: Vitals, drift: Drift | None) -> Iterator[tuple[str, float, float, bool]]:
        """(figure, value, limit, whether it is a lower one) of all that was measured."""
        if vitals.ess is not None:
            # Data that said little before anything was learnt is no fault of the training.
            floor = limits.min_ess if vitals.start_ess is None else min(limits.min_ess, vitals.start_ess / 2)
            yield "ess", vitals.ess, floor, True
        if vitals.approx_kl is not None:
            yield "approx_kl", vitals.approx_kl, limits.max_kl, False
        if vitals.entropy is not None and vitals.start_entropy is not None:
            yield "policy_entropy", vitals.entropy, vitals.start_entropy + limits.max_entropy_rise, False
            yield "policy_entropy", vitals.entropy, vitals.start_entropy * limits.min_entropy_share, True
        if vitals.grad_norm is not None and len(self.norms) >= LEAST_NORMS:
            yield "grad_norm", vitals.grad_norm, limits.max_gradient_growth * statistics.median(self.norms), False
        if drift is not None and drift.reward_shift > 0 and len(drift.shifts) >= LEAST_TRAJECTORIES:
            yield "independent_shift", drift.independent_shift, -SIGMAS / math.sqrt(len(drift.shifts)), True


@dataclass(slots=True)
class Drift:
    """Whether a policy moves towards what the reward calls good, and what an independent metric calls good.

    Both are correlations over trajectories, in -1..1: of how much likelier their tokens became, and of how good they
    were.
    """

    rewards: Mapping[str, float]
    independent: Mapping[str, float]
    """Of the trajectories that have one."""
    shifts: dict[str, float] = field(default_factory=dict[str, float])
    """Mean change of the log-probability of a trajectory's tokens since the start, in nats, when last seen."""

    def add(self, shifts: Mapping[str, float]) -> None:
        """Take in the trajectories of a train step."""
        self.shifts |= {name: shift for name, shift in shifts.items() if name in self.independent}

    @property
    def reward_shift(self) -> float:
        """Correlation with the reward."""
        return self._with(self.rewards)

    @property
    def independent_shift(self) -> float:
        """Correlation with the independent metric."""
        return self._with(self.independent)

    def _with(self, goods: Mapping[str, float]) -> float:
        return correlation(list(self.shifts.values()), [goods[name] for name in self.shifts])


def correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    """Pearson's; 0 where one of both does not vary."""
    try:
        return statistics.correlation(ones, others)
    except statistics.StatisticsError:
        return 0.0


def described(stop: HealthStop, kept_step: int | None) -> HealthStop:
    """The stop with what became of the training, also in a sentence."""
    side = "below" if stop.value < stop.limit else "above"
    kept = f"the weights of train step {kept_step} were kept" if kept_step else "no earlier weights are worth keeping"
    message = f"{stop.figure} {stop.value:.4g} at train step {stop.step} is {side} its limit {stop.limit:.4g}: {kept}"
    return msgspec.structs.replace(stop, kept_step=kept_step or None, message=message)
