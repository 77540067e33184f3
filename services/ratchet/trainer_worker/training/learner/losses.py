"""The decoupled objective of clipped policy gradients on logged tokens, as pure functions.

Shapes: _N trained tokens of a train step's micro-batch, _R rows of it, _M tokens with a reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

PULL_BOUND = 5.0
"""Nats from the reference beyond which a token pulls no harder, so that a rare one cannot own a train step."""
RATIO_BOUND = 5.0
"""Of the estimates of KL, which were within a factor of 2.5 of the exact ones from .001 to 10 nats."""
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
    ratio: str = "token"
    """`token`, or `sequence`: pi/proximal is the geometric mean over a row, the same for all its tokens."""
    surrogate: str = "ppo"
    """One of `SURROGATES`."""


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
    """log-probability under the frozen reference, NaN where it was not scored; all are needed when `kl_beta` is not
    zero."""


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
    """Sum of the estimate of KL(pi || reference), over the tokens that have one."""
    kl_tokens: int
    """How many those are."""
    moved: Tensor
    """Sum of the estimate of KL(proximal || pi): how far the update has moved the policy."""
    weight_sum: Tensor
    """Sum of exp(pi - mu), of at most 1 + `clip_high`: a few rare tokens that were learnt would be the whole sum."""
    weight_square_sum: Tensor
    shift_R: Tensor
    """Mean of pi - proximal over each row's tokens."""

    def of_numbers(self) -> Loss:
        """Without gradient, and on the CPU, so that it can be sent to another process."""
        tensors = {
            name: tensor.detach().cpu() for name in self.__slots__ if isinstance(tensor := getattr(self, name), Tensor)
        }
        return replace(self, **tensors)


def policy_loss(tokens: Tokens, objective: Objective) -> Loss:
    """The surrogate of pi/proximal, times the truncated weight proximal/behaviour, plus the pull of the reference.

    Decoupled objective: arXiv:2110.00641 eq. 8; a row's ratio (GSPO): arXiv:2507.18071 eq. 7.
    """
    log_ratio_N = tokens.logprobs_N - tokens.proximal_N
    shift_R = row_means(log_ratio_N, tokens.row_N, tokens.rows)
    ratio_N = _exp(shift_R[tokens.row_N] if objective.ratio == "sequence" else log_ratio_N)
    loss_N = SURROGATES[objective.surrogate](tokens, ratio_N, objective)
    log_weight_N = (tokens.proximal_N - tokens.behavior_N).detach()
    if objective.importance_cap is not None:
        loss_N = loss_N * _exp(log_weight_N).clamp(max=objective.importance_cap)
    if objective.kl_beta and tokens.reference_N is not None:
        loss_N = loss_N + objective.kl_beta * pull(tokens.logprobs_N, tokens.reference_N)
    kept_N = kept_tokens(log_weight_N, tokens.row_N, tokens.rows, objective.rejection_window)
    with torch.no_grad():
        low = 0.0 if objective.surrogate == CISPO else 1 - objective.clip_low
        outside_N = (ratio_N < low) | (ratio_N > 1 + objective.clip_high)
        now_N = _exp(tokens.logprobs_N - tokens.behavior_N).clamp(max=1 + objective.clip_high)
        moved_N = bounded_k3(tokens.proximal_N, tokens.logprobs_N)
        kl_M = tokens.logprobs_N.new_zeros(0)  # of the M tokens whose reference was scored
        if tokens.reference_N is not None:
            known_N = ~tokens.reference_N.isnan()
            kl_M = bounded_k3(tokens.logprobs_N[known_N], tokens.reference_N[known_N])
    return Loss(
        value=(loss_N * kept_N * tokens.weights_N).sum(),
        tokens=len(loss_N),
        clipped=outside_N.sum(),
        rejected=(~kept_N).sum(),
        kl=kl_M.sum(),
        kl_tokens=len(kl_M),
        moved=moved_N.sum(),
        weight_sum=now_N.sum(),
        weight_square_sum=(now_N * now_N).sum(),
        shift_R=shift_R.detach(),
    )


def _clipped_ratio(tokens: Tokens, ratio_N: Tensor, objective: Objective) -> Tensor:
    """PPO's clip (arXiv:1707.06347 eq. 7), and a bound of what one bad token can cost (arXiv:1912.09729 eq. 5)."""
    gain_N = tokens.advantages_N * ratio_N
    bounded_N = tokens.advantages_N * ratio_N.clamp(1 - objective.clip_low, 1 + objective.clip_high)
    loss_N = -torch.minimum(gain_N, bounded_N)
    dual_N = -tokens.advantages_N * objective.dual_clip
    return torch.where(tokens.advantages_N < 0, torch.minimum(loss_N, dual_N), loss_N)


def _clipped_weight(tokens: Tokens, ratio_N: Tensor, objective: Objective) -> Tensor:
    """CISPO: the log-probability, weighted by the ratio up to a bound; every token learns (arXiv:2506.13585 eq. 4)."""
    weight_N = ratio_N.detach().clamp(max=1 + objective.clip_high)
    return -weight_N * tokens.advantages_N * tokens.logprobs_N


PPO, CISPO = "ppo", "cispo"
SURROGATES: Mapping[str, Callable[[Tokens, Tensor, Objective], Tensor]] = {PPO: _clipped_ratio, CISPO: _clipped_weight}
"""Loss per token, from the ratio of the policy now to that at the start of the update."""


def row_means(values_N: Tensor, row_N: Tensor, rows: int) -> Tensor:
    """Mean over the tokens of each row."""
    sums_R = values_N.new_zeros(rows).index_add(0, row_N, values_N)
    counts_R = torch.bincount(row_N, minlength=rows).clamp(min=1)
    return sums_R / counts_R


def pull(logprobs_N: Tensor, reference_N: Tensor) -> Tensor:
    """k2 of Schulman 2020, "Approximating KL Divergence", per token, and a line beyond `PULL_BOUND`.

    On tokens that pi drew its gradient is that of KL(pi || reference); that of k3 is not, and grows with the ratio.
    """
    return huber_loss(logprobs_N, reference_N, reduction="none", delta=PULL_BOUND)


def bounded_k3(drawn_N: Tensor, other_N: Tensor) -> Tensor:
    """Schulman's non-negative k3 of KL(drawn || other) per token, with ratios of at most `RATIO_BOUND`.

    Without the bound one token whose odds grew is the mean: the tokens at hand are those that were just learnt, and k3
    has a small variance on fresh draws alone.
    """
    difference_N = (other_N - drawn_N).clamp(-LOG_BOUND, math.log(RATIO_BOUND))
    return difference_N.exp() - difference_N - 1


def kept_tokens(log_weight_N: Tensor, row_N: Tensor, rows: int, window: tuple[float, float] | None) -> Tensor:
    """False for the tokens of rows whose geometric-mean weight lies outside `window`."""
    if window is None:
        return torch.ones_like(row_N, dtype=torch.bool)
    mean_R = row_means(log_weight_N, row_N, rows).exp()
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


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_BOUND, LOG_BOUND).exp()
