"""Losses over sequence log-probabilities, policy against reference. Pure: tensors in, a loss with its terms out.

Shapes: _P pairs, _L labelled examples, _M mismatched examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


@dataclass(frozen=True, slots=True)
class PairLogprobs:
    """Sums over the learning tokens of both sides of each pair."""

    chosen_P: Tensor
    rejected_P: Tensor
    reference_chosen_P: Tensor
    reference_rejected_P: Tensor


@dataclass(frozen=True, slots=True)
class PairLoss:
    """DPO per pair. The implicit rewards carry no gradient."""

    loss_P: Tensor
    rewards_chosen_P: Tensor
    rewards_rejected_P: Tensor

    @property
    def margins(self) -> Tensor:
        """By how much the chosen side is rewarded more."""
        return self.rewards_chosen_P - self.rewards_rejected_P


@dataclass(frozen=True, slots=True)
class KtoWeights:
    """How much the two kinds of example count, and how far the policy may leave the reference."""

    beta: float
    desirable: float = 1.0
    undesirable: float = 1.0


@dataclass(frozen=True, slots=True)
class KtoLoss:
    """KTO per example. The implicit rewards and the reference point carry no gradient."""

    loss_L: Tensor
    rewards_L: Tensor
    reference_point: Tensor
    """Estimated KL divergence from the reference, in nats, not negative."""


def dpo_loss(scores: PairLogprobs, beta: float, label_smoothing: float = 0.0) -> PairLoss:
    """Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

    `label_smoothing` is the probability that a preference was noted the wrong way round: conservative DPO (Mitchell
    2023, "A note on DPO with noisy preferences", eq. 3).
    """
    chosen_P = beta * (scores.chosen_P - scores.reference_chosen_P)
    rejected_P = beta * (scores.rejected_P - scores.reference_rejected_P)
    margin_P = chosen_P - rejected_P
    loss_P = -(1 - label_smoothing) * logsigmoid(margin_P) - label_smoothing * logsigmoid(-margin_P)
    return PairLoss(loss_P, chosen_P.detach(), rejected_P.detach())


def kto_loss(log_ratio_L: Tensor, desirable_L: Tensor, mismatched_log_ratio_M: Tensor, weights: KtoWeights) -> KtoLoss:
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8).

    Log-ratios are policy minus reference, of whole completions. The reference point z0 is the mean log-ratio of
    completions under prompts that they do not belong to, not below 0; no gradient flows through it (section 4.2).
    An example's loss is its weight times 1 - sigmoid(beta (log-ratio - z0)), with the sign turned where it is
    undesirable: the paper's constant term makes no difference to the gradient and keeps the loss above 0.
    """
    reference_point = mismatched_log_ratio_M.detach().mean().clamp(min=0)
    distance_L = weights.beta * (log_ratio_L - reference_point)
    weight_L = torch.where(desirable_L, weights.desirable, weights.undesirable)
    value_L = torch.sigmoid(torch.where(desirable_L, distance_L, -distance_L))
    return KtoLoss(weight_L * (1 - value_L), (weights.beta * log_ratio_L).detach(), reference_point)
