"""Generalised advantage estimation over trained tokens only (arXiv:1506.02438).

Tokens that the environment wrote take no part: the value after a policy's token is the value before its next one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def gae(values: Sequence[float], reward: float, gamma: float, gae_lambda: float) -> tuple[list[float], list[float]]:
    """(advantages, returns) of one row's trained tokens; `reward` is paid on the last of them."""
    advantages = [0.0] * len(values)
    running, following, paid = 0.0, 0.0, reward
    for index in range(len(values) - 1, -1, -1):
        delta = paid + gamma * following - values[index]
        running = delta + gamma * gae_lambda * running
        advantages[index] = running
        following, paid = values[index], 0.0
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Shift and scale all tokens of all rows together to mean 0 and standard deviation 1."""
    flat = [value for row in advantages for value in row]
    if len(flat) < 2:
        return [list(row) for row in advantages]
    mean, spread = statistics.fmean(flat), statistics.stdev(flat)
    return [[(value - mean) / (spread + 1e-6) for value in row] for row in advantages]
