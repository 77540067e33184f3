"""Holding pairs out: what shares a prompt or a group stays on one side. And what a held-out count can show."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


def split(keys: Sequence[Sequence[Hashable]], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """(indices to learn from, indices held out), both in order.

    `keys` has the names (prompt, group) of each example; examples that share one, directly or through others, are not
    separated. Groups are taken in an order drawn from `seed` while they fit into the requested number.
    """
    groups = _connected(keys)
    order = sorted(groups, key=lambda group: hashlib.sha256(f"{seed}:{group[0]}".encode()).digest())
    size = round(fraction * len(keys))
    held: list[int] = []
    for group in order:
        if len(held) + len(group) <= size:
            held += group
    kept = set(held)
    return [index for index in range(len(keys)) if index not in kept], sorted(held)


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927). `successes` may count a tie as one half."""
    share = successes / trials
    denominator = 1 + Z95**2 / trials
    centre = (share + Z95**2 / (2 * trials)) / denominator
    half = Z95 * math.sqrt(share * (1 - share) / trials + Z95**2 / (4 * trials**2)) / denominator
    return max(0.0, centre - half), min(1.0, centre + half)


def _connected(keys: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Groups of indices that share a key, each in order, by their first index."""
    root = list(range(len(keys)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    first: dict[Hashable, int] = {}
    for index, names in enumerate(keys):
        for name in names:
            one, other = find(first.setdefault(name, index)), find(index)
            root[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for index in range(len(keys)):
        groups.setdefault(find(index), []).append(index)
    return list(groups.values())
