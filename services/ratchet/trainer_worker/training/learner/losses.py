"""The decoupled PPO objective on logged tokens, as pure functions, and the critic of PPO with its own loss.

Shapes: _N trained tokens of a train step's micro-batch, _R rows of it, _H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LOG_BOUND = 20.0
"""Log-ratios are clamped here before exponentiation, so that one absurd token cannot make the loss infinite."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The knobs of the objective; the defaults are those of the design."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0
    importance_cap: float | None = 2.0
    """Upper bound of exp(proximal - behaviour); None leaves the correction out."""
    rejection_window: tuple[float, float] | None = (0.9, 1.1)
    """Rows whose geometric-mean ratio proximal/behaviour lies outside do not learn; None keeps all."""
    kl_beta: float = 0.001


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is known of the trained tokens of some complete rows."""

    logprobs_N: Tensor
    """log pi, with gradient."""
    proximal_N: Tensor
    """log pi at the start of the update."""
    behavior_N: Tensor
    """log mu as logged."""
    advantages_N: Tensor
    weights_N: Tensor
    """Normalisation: the loss is the weighted sum over tokens."""
    row_N: Tensor
    """Index of each token's row, 0 ... rows - 1."""
    rows: int
    reference_N: Tensor | None = None
    """log-probability under the frozen reference; needed when `kl_beta` is not zero."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`value` carries the gradient. The sums are over tokens, so that micro-batches add up."""

    value: Tensor
    tokens: int
    clipped: Tensor
    """Tokens whose ratio lies outside the clip range."""
    rejected: Tensor
    """Tokens in rejected rows."""
    kl: Tensor
    """Sum of the k3 estimate against the reference."""
    weight_sum: Tensor
    """Sum of exp(pi - mu), untruncated."""
    weight_square_sum: Tensor


def policy_loss(tokens: Tokens, objective: Objective) -> Loss:
    """PPO clip on pi/proximal, times the truncated weight proximal/behaviour, plus k3 KL to the reference.

    Decoupled objective: arXiv:2110.00641 eq. 8; dual clip: arXiv:1912.09729 eq. 5; k3: Schulman 2020,
    "Approximating KL Divergence".
    """
    ratio_N = _exp(tokens.logprobs_N - tokens.proximal_N)
    gain_N = tokens.advantages_N * ratio_N
    bounded_N = tokens.advantages_N * ratio_N.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    loss_N = -torch.minimum(gain_N, bounded_N)
    dual_N = -tokens.advantages_N * objective.dual_clip
    loss_N = torch.where(tokens.advantages_N < 0, torch.minimum(loss_N, dual_N), loss_N)
    log_weight_N = (tokens.proximal_N - tokens.behavior_N).detach()
    if objective.importance_cap is not None:
        loss_N = loss_N * _exp(log_weight_N).clamp(max=objective.importance_cap)
    kl_N = torch.zeros_like(loss_N)
    if objective.kl_beta and tokens.reference_N is not None:
        kl_N = k3(tokens.logprobs_N, tokens.reference_N)
        loss_N = loss_N + objective.kl_beta * kl_N
    kept_N = kept_tokens(log_weight_N, tokens.row_N, tokens.rows, objective.rejection_window)
    with torch.no_grad():
        outside_N = (ratio_N < 1 - objective.clip_low) | (ratio_N > 1 + objective.clip_high)
        now_N = _exp(tokens.logprobs_N - tokens.behavior_N)
    return Loss(
        value=(loss_N * kept_N * tokens.weights_N).sum(),
        tokens=len(loss_N),
        clipped=outside_N.sum(),
        rejected=(~kept_N).sum(),
        kl=kl_N.detach().sum(),
        weight_sum=now_N.sum(),
        weight_square_sum=(now_N * now_N).sum(),
    )


def k3(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """Schulman's low-variance, non-negative estimate of KL(pi || reference) per token."""
    difference_N = (reference_N - logprobs_N).clamp(-LOG_BOUND, LOG_BOUND)
    return difference_N.exp() - difference_N - 1


def kept_tokens(log_weight_N: Tensor, row_N: Tensor, rows: int, window: tuple[float, float] | None) -> Tensor:
    """False for the tokens of rows whose geometric-mean weight lies outside `window`."""
    if window is None:
        return torch.ones_like(row_N, dtype=torch.bool)
    sums_R = log_weight_N.new_zeros(rows).index_add_(0, row_N, log_weight_N)
    counts_R = log_weight_N.new_zeros(rows).index_add_(0, row_N, torch.ones_like(log_weight_N))
    mean_R = (sums_R / counts_R.clamp(min=1)).exp()
    return ((mean_R >= window[0]) & (mean_R <= window[1]))[row_N]


def row_weights(normalization: str, trajectories: Sequence[str], trained: Sequence[int], constant: int) -> list[float]:
    """Weight of every token of each row of one train step, so that the loss is a plain weighted sum.

    `trajectory`: the mean over trajectories of the mean over a trajectory's tokens, in however many rows they lie;
    `token`: the mean over tokens; `constant`: the sum over tokens divided by rows x `constant`.
    """
    if normalization == "token":
        return [1.0 / max(1, sum(trained))] * len(trained)
    if normalization == "constant":
        return [1.0 / (len(trained) * constant)] * len(trained)
    per: dict[str, int] = {}
    for trajectory, count in zip(trajectories, trained, strict=True):
        per[trajectory] = per.get(trajectory, 0) + count
    return [1.0 / (per[trajectory] * len(per)) for trajectory in trajectories]


class Critic(nn.Module):
    """A value head on the policy's own trunk: one linear layer on the trunk's hidden states, without gradient to them.

    Starts at zero.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, hidden_NH: Tensor) -> Tensor:
        """Value before each token, from the hidden state that predicts it."""
        return self.head(hidden_NH.detach().float()).squeeze(-1)


def value_loss(values_N: Tensor, start_N: Tensor, returns_N: Tensor, weights_N: Tensor, clip: float) -> Tensor:
    """Squared error with the step from the start value clipped (arXiv:2005.12729, section 3), halved."""
    clipped_N = start_N + (values_N - start_N).clamp(-clip, clip)
    worst_N = torch.maximum((values_N - returns_N) ** 2, (clipped_N - returns_N) ** 2)
    return 0.5 * (worst_N * weights_N).sum()


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_BOUND, LOG_BOUND).exp()
