"""The critic of PPO: a value head on the policy's own trunk, and its clipped loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Critic(nn.Module):
    """One linear layer on the trunk's hidden states, which it reads without changing the trunk. Starts at zero."""

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
