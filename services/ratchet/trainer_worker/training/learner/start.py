"""What is fixed when an update starts: rows, proximal and reference log-probabilities, advantages, the critic's values.

Checkpoints hold it, since later weights differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.losses import Critic, kept_tokens
from ratchet.trainer_worker.training.learner.rows import Row

SCORING_ROWS = 64
"""Rows scored at a time; they are ordered by length, so that few positions are padding."""

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
    reference: Sequence[Tensor] | None = None
    values: Sequence[Tensor] | None = None
    """The critic's estimates before the update."""
    returns: Sequence[Tensor] | None = None

    def save(self, directory: Path) -> None:
        """Write the columns into a checkpoint."""
        columns = {
            "proximal": self.proximal,
            "advantages": self.advantages,
            "reference": self.reference,
            "values": self.values,
            "returns": self.returns,
        }
        save_file({name: torch.cat(list(c)) for name, c in columns.items() if c is not None}, directory / FIXED)


def load_fixed(directory: Path, rows: Sequence[Row]) -> FixedRows:
    """Read the columns for `rows` again. Raises `DataUnusable` when they belong to other rows."""
    flat = load_file(directory / FIXED)
    sizes = [row.trained for row in rows]
    if len(flat["proximal"]) != sum(sizes):
        raise DataUnusable("the checkpoint was made from other data")
    columns = {name: column.split(sizes) for name, column in flat.items()}
    return FixedRows(
        rows=rows,
        proximal=columns["proximal"],
        advantages=columns["advantages"],
        reference=columns.get("reference"),
        values=columns.get("values"),
        returns=columns.get("returns"),
    )


@dataclass(frozen=True, slots=True)
class StartScores:
    """One CPU tensor per row, over its trained tokens."""

    proximal: list[Tensor]
    reference: list[Tensor] | None
    values: list[Tensor] | None
    entropy: float
    """Mean over tokens."""


def score_start(
    scorer: Scorer, rows: Sequence[Row], *, reference: bool, fresh: bool, critic: Critic | None
) -> StartScores:
    """Score all rows before the first train step.

    The reference is the base with the adapter disabled. While the policy is `fresh` it *is* its reference: a new
    adapter changes nothing yet, and a full fine-tune is compared with where it started.
    """
    check_head(scorer, rows)
    proximal, entropy, values = _passes(scorer, rows, critic)
    if not reference or fresh:
        return StartScores(proximal, proximal if reference else None, values, entropy)
    model: Any = scorer.model
    with model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
        base, _, _ = _passes(scorer, rows, None)
    return StartScores(proximal, base, values, entropy)


def check_off_policy(rows: Sequence[Row], start: StartScores, window: tuple[float, float] | None) -> float:
    """The effective sample size of the data. Raises `DataUnusable` when it is too small, or no row passes `window`."""
    behavior = torch.cat([trained(row, row.behavior_logprobs) for row in rows])
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


def trained(row: Row, column: Sequence[float]) -> Tensor:
    """The entries of `column` at the tokens that learn."""
    return torch.tensor([value for value, learns in zip(column, row.loss_mask, strict=True) if learns])


@torch.no_grad()
def _passes(
    scorer: Scorer, rows: Sequence[Row], critic: Critic | None
) -> tuple[list[Tensor], float, list[Tensor] | None]:
    scorer.model.eval()
    logprobs: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    entropies: list[Tensor] = []
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index].token_ids))
    for begin in range(0, len(rows), SCORING_ROWS):
        part = by_length[begin : begin + SCORING_ROWS]
        scores = scorer.score([rows[index] for index in part])
        sizes = [rows[index].trained for index in part]
        entropies.append(scores.entropy_N.cpu())
        logprobs |= zip(part, scores.logprobs_N.cpu().split(sizes), strict=True)
        if critic is not None:
            values |= zip(part, critic(scores.hidden_NH).cpu().split(sizes), strict=True)
    order = range(len(rows))
    in_order = [values[index] for index in order] if critic is not None else None
    return [logprobs[index] for index in order], float(torch.cat(entropies).mean()), in_order
