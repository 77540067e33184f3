"""What is fixed when an update starts: proximal and reference log-probabilities, and the critic's first values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.learner.critic import Critic
from ratchet.trainer_worker.training.learner.logprobs import Scorer, verify_head
from ratchet.trainer_worker.training.learner.losses import kept_tokens
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.staleness import MIN_ESS, effective_sample_size

SCORING_ROWS = 64
"""Rows scored at a time; they are ordered by length, so that few positions are padding."""

HEAD_TOLERANCE = 0.02
"""Largest difference in nats between the scorer and the model's own logits; bf16 alone makes about 0.01."""


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


def check_head(scorer: Scorer, rows: Sequence[Row]) -> None:
    """Raise `DataUnusable` when `scorer` and the model itself disagree on the shortest of `rows`."""
    difference = verify_head(scorer, min(rows, key=lambda row: len(row.token_ids)))
    if difference > HEAD_TOLERANCE:
        raise DataUnusable(f"the model changes its logits in a way the learner does not know ({difference:.3f} nats)")


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
    for part in _by_length(rows):
        scores = scorer.score([rows[index] for index in part])
        sizes = [rows[index].trained for index in part]
        entropies.append(scores.entropy_N.cpu())
        logprobs |= zip(part, scores.logprobs_N.cpu().split(sizes), strict=True)
        if critic is not None:
            values |= zip(part, critic(scores.hidden_NH).cpu().split(sizes), strict=True)
    order = range(len(rows))
    in_order = [values[index] for index in order] if critic is not None else None
    return [logprobs[index] for index in order], float(torch.cat(entropies).mean()), in_order


def _by_length(rows: Sequence[Row]) -> Iterator[list[int]]:
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].token_ids))
    for begin in range(0, len(order), SCORING_ROWS):
        yield order[begin : begin + SCORING_ROWS]
