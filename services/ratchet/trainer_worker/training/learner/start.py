"""What is fixed when an update starts: rows, proximal and reference log-probabilities, entropies, advantages.

Checkpoints hold it, since later weights differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.critic import Features
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.losses import kept_tokens
from ratchet.trainer_worker.training.learner.rows import Row

FIXED = "fixed.safetensors"
"""In a checkpoint."""

MIN_ESS = 0.3
"""Below this effective sample size (as a fraction) the data says too little about the policy: stop."""


@dataclass(frozen=True, slots=True)
class FixedRows:
    """Each column has one CPU tensor per row, over the row's trained tokens."""

    rows: Sequence[Row]
    proximal: Sequence[Tensor]
    advantages: Sequence[Tensor]
    entropies: Sequence[Tensor]
    """Of the distributions that the tokens were drawn from, at the start."""
    reference: Sequence[Tensor] | None = None
    """NaN where it was not scored."""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was measured at the start."""

    def save(self, directory: Path) -> None:
        """Write the columns into a checkpoint."""
        names = ("proximal", "advantages", "entropies", "reference")
        flat = {name: torch.cat(list(column)) for name in names if (column := getattr(self, name)) is not None}
        save_file(flat, directory / FIXED, {"figures": msgspec.json.encode(self.figures).decode()})


def load_fixed(directory: Path, rows: Sequence[Row]) -> FixedRows:
    """Read the columns for `rows` again. Raises `DataUnusable` when they belong to other rows."""
    with safe_open(directory / FIXED, framework="pt") as file:
        flat: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        figures = msgspec.json.decode(file.metadata()["figures"], type=dict[str, float])
    sizes = [row.trained for row in rows]
    if len(flat["proximal"]) != sum(sizes):
        raise DataUnusable("the checkpoint was made from other data")
    columns = {name: column.split(sizes) for name, column in flat.items()}
    return FixedRows(rows, **columns, figures=figures)


@dataclass(frozen=True, slots=True)
class StartScores:
    """One CPU tensor per row, over its trained tokens."""

    proximal: list[Tensor]
    entropies: list[Tensor]
    reference: list[Tensor]
    """NaN where it was not asked for."""
    features: list[Tensor]
    """[N, D] of each row; empty when none were asked for."""

    @property
    def entropy(self) -> float:
        """Mean over tokens."""
        return float(torch.cat(self.entropies).mean())


def score_start(
    scorer: Scorer, rows: Sequence[Row], *, referenced: Sequence[int], fresh: bool, features: Features | None
) -> StartScores:
    """Score all rows before the first train step, those at `referenced` under the reference as well.

    The reference is the base with the adapter disabled. While the policy is `fresh` it *is* its reference: a new
    adapter changes nothing yet, and a full fine-tune is compared with where it started.
    """
    check_head(scorer, rows)
    start = _passes(scorer, rows, features)
    if fresh:
        return replace(start, reference=start.proximal)
    model: Any = scorer.model
    with model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
        base = _passes(scorer, [rows[index] for index in referenced], None) if referenced else None
    for index, logprobs in zip(referenced, base.proximal if base else (), strict=True):
        start.reference[index] = logprobs
    return start


def check_off_policy(rows: Sequence[Row], start: StartScores, window: tuple[float, float] | None) -> float:
    """The effective sample size of the data. Raises `DataUnusable` when it is too small, or no row passes `window`."""
    behavior = behavior_logprobs(rows)
    log_weights = torch.cat(start.proximal) - behavior
    ess = effective_sample_size(log_weights.tolist())
    if ess < MIN_ESS:
        raise DataUnusable(f"the data is too far off-policy: effective sample size {ess:.2f}, {MIN_ESS} is needed")
    row_N = torch.cat([torch.full((len(part),), index) for index, part in enumerate(start.proximal)])
    if not kept_tokens(log_weights, row_N, len(rows), window).any():
        raise DataUnusable(f"every row lies outside the rejection window {window}: the logged policy is another one")
    return ess


def effective_sample_size(log_weights: Sequence[float]) -> float:
    """(sum w)^2 / (N sum w^2) of the untruncated weights, in (0, 1]; 1 when there are none (Kish 1965)."""
    if not log_weights:
        return 1.0
    top = max(log_weights)  # the scale cancels; this keeps the exponentials finite
    weights = [math.exp(value - top) for value in log_weights]
    return sum(weights) ** 2 / (len(weights) * sum(weight * weight for weight in weights))


def behavior_logprobs(rows: Sequence[Row]) -> Tensor:
    """Logged ones of all tokens that learn, row by row."""
    return torch.tensor(np.concatenate([row.behavior_logprobs for row in rows]))


@torch.no_grad()
def _passes(scorer: Scorer, rows: Sequence[Row], features: Features | None) -> StartScores:
    logprobs: dict[int, Tensor] = {}
    entropies: dict[int, Tensor] = {}
    taken: dict[int, Tensor] = {}
    for part in scorer.passes([[row] for row in rows]):
        scores = scorer.score([rows[index] for index in part])
        sizes = [rows[index].trained for index in part]
        logprobs |= zip(part, scores.logprobs_N.cpu().split(sizes), strict=True)
        entropies |= zip(part, scores.entropy_N.cpu().split(sizes), strict=True)
        if features is not None:
            taken |= zip(part, features(scores.hidden_NH).split(sizes), strict=True)
    for theirs in scorer.ranks.gather((logprobs, entropies, taken)):
        logprobs, entropies, taken = logprobs | theirs[0], entropies | theirs[1], taken | theirs[2]
    order = range(len(rows))
    return StartScores(
        proximal=[logprobs[index] for index in order],
        entropies=[entropies[index] for index in order],
        reference=[torch.full_like(logprobs[index], torch.nan) for index in order],
        features=[taken[index] for index in order] if features is not None else [],
    )
