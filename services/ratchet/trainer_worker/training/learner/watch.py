"""Whether a training whose losses can be compared from step to step is still healthy: sft, dpo, kto, reward_model.

Every train step is judged before its update, by the means of a few steps, for one batch alone says little. Where
examples are held out, they judge too, and the weights that did best on them are those that a stopped training keeps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

import msgspec

from ratchet.core.contract.training import HealthStop
from ratchet.trainer_worker.training.learner.health import LEAST_NORMS, NORMS, SIGMAS

STEPS = 5
"""Train steps whose mean is judged."""
HELD_OUT_LOSS = "holdout_loss"
"""The score that says which weights did best on what is held out."""


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """See `HealthLimits`; the defaults are those of the trainer."""

    max_loss_rise: float = 1.0
    max_holdout_rise: float = 0.5
    max_entropy_rise: float = 1.0
    max_gradient_growth: float = 100.0


@dataclass(slots=True)
class Seen:
    """What a resumed training needs to judge as an unbroken one."""

    losses: list[float] = field(default_factory=list[float])
    """Of the newest train steps."""
    entropies: list[float] = field(default_factory=list[float])
    norms: list[float] = field(default_factory=list[float])
    least_loss: float | None = None
    """The least mean of a few train steps."""
    start_entropy: float | None = None
    """The first such mean."""
    least_holdout: float | None = None


@dataclass(slots=True)
class Watch:
    """Judges train steps one after the other. Without limits everything is healthy."""

    limits: LoopLimits | None
    clip: float
    """Longest gradient that is not shortened: no growth below it is one that matters."""
    seen: Seen = field(default_factory=Seen)

    def judge(self, step: int, loss: float, norm: float | None, entropy: float | None = None) -> HealthStop | None:
        """The first figure of train step `step` that is beyond its limit, if any; else remember the step.

        Without `norm` it is the last step's batch under the weights that it made.
        """
        if self.limits is None:
            return None
        seen = self.seen
        losses = [*seen.losses, loss][-STEPS:]
        entropies = [*seen.entropies, *([] if entropy is None else [entropy])][-STEPS:]
        mean = statistics.fmean(losses) if len(losses) == STEPS else None
        uncertainty = statistics.fmean(entropies) if len(entropies) == STEPS else None
        for figure, value, limit in self._figures(self.limits, mean, norm, uncertainty):
            if value > limit:
                return HealthStop(figure=figure, step=step, value=value, limit=limit)
        seen.losses, seen.entropies = losses, entropies
        if norm:
            seen.norms = [*seen.norms, norm][-NORMS:]
        if mean is not None:
            seen.least_loss = mean if seen.least_loss is None else min(seen.least_loss, mean)
        if seen.start_entropy is None:
            seen.start_entropy = uncertainty
        return None

    def judge_held_out(self, step: int, scores: Mapping[str, float]) -> HealthStop | None:
        """The first figure of an evaluation after train step `step` that is beyond its limit, if any."""
        if self.limits is None:
            return None
        for figure, value, limit in _below_chance(scores):
            if value < limit:
                return HealthStop(figure=figure, step=step, value=value, limit=limit)
        loss, least = scores[HELD_OUT_LOSS], self.seen.least_holdout
        if least is not None and loss > least + self.limits.max_holdout_rise:
            limit = least + self.limits.max_holdout_rise
            return HealthStop(figure=HELD_OUT_LOSS, step=step, value=loss, limit=limit)
        return None

    def improves(self, scores: Mapping[str, float]) -> bool:
        """Whether no weights did better so far on what is held out; remembers it."""
        loss, least = scores[HELD_OUT_LOSS], self.seen.least_holdout
        if least is not None and loss >= least:
            return False
        self.seen.least_holdout = loss
        return True

    def encode(self) -> bytes:
        """What it has seen, for a checkpoint."""
        return msgspec.json.encode(asdict(self.seen))

    def decode(self, state: bytes) -> None:
        """Go on where `encode` was called."""
        self.seen = msgspec.json.decode(state, type=Seen)

    def _figures(
        self, limits: LoopLimits, mean: float | None, norm: float | None, uncertainty: float | None
    ) -> Iterator[tuple[str, float, float]]:
        """(figure, value, upper limit) of all that was measured."""
        seen = self.seen
        if norm is not None and len(seen.norms) >= LEAST_NORMS:
            usual = max(self.clip, statistics.median(seen.norms))
            yield "grad_norm", norm, limits.max_gradient_growth * usual
        if mean is not None and seen.least_loss is not None:
            yield "loss", mean, seen.least_loss + limits.max_loss_rise
        if uncertainty is not None and seen.start_entropy is not None:
            yield "policy_entropy", uncertainty, seen.start_entropy + limits.max_entropy_rise


def _below_chance(scores: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """(figure, value, lower limit): what is held out says clearly the opposite of what is learnt from.

    The limits are so many standard errors below one half, for many evaluations are looked at.
    """
    pairs = scores.get("holdout_pairs")
    for figure in ("holdout_win_rate", "holdout_accuracy"):
        # A policy may find the rejected side likelier from the start, so its win rate counts where it has one.
        if pairs and figure in scores:
            yield figure, scores[figure], 0.5 - SIGMAS * 0.5 / math.sqrt(pairs)
            break
    liked, disliked = scores.get("holdout_liked"), scores.get("holdout_disliked")
    if liked and disliked and "holdout_auc" in scores:
        error = math.sqrt((liked + disliked + 1) / (12 * liked * disliked))
        yield "holdout_auc", scores["holdout_auc"], 0.5 - SIGMAS * error
