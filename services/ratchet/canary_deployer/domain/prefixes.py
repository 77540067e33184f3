"""Wealth over prefixes: the largest one for rollback, the present one for promotion. Blocks of BLOCK trajectories.

**Capital is put in bit by bit.** Half of it bets from the first trajectory on; of the other half, 1/(m (m + 1)) is put
in before block m = 1, 2, ..., which sums to all of it. Each part is a supermartingale from its own beginning, so the
sum is one (Vovk & Wang 2021). Without this a canary that was good for hours would first have to win back what the test
lost meanwhile: it would be watched in name only. Late in a rollout, after m blocks, a canary that turns bad is caught
with 2 m (m + 1) times the evidence that a fresh one needs: ln 10,000 = 9 for m = 70, the 9,000th trajectory.

**The present is capped.** Promotion asks for the wealth at the present watermark. Each stake's wealth is cut at
`ceiling` after every trajectory: min(V f, c) <= V f, so it stays a supermartingale under its null, and an early good
hour can bank no more than the ceiling. A canary that was better and is now worse loses it within a few hundred
trajectories (ADR 23 compares ceilings: a lower one forgets sooner and promotes an equal canary later).
"""

from __future__ import annotations

import numpy as np

from ratchet.canary_deployer.domain.e_processes import Floats

BLOCK = 128
"""Trajectories that are folded, stored and put under new capital together."""

LARGEST = 1e100
"""Wealth is cut here: beyond it nothing is decided any more, and a product of BLOCK factors still fits a float."""


def first_capital() -> float:
    """What bets from the first trajectory on."""
    return 0.5


def reserve(block: int) -> float:
    """What is not at stake yet during block `block` = 0, 1, ..."""
    return 0.5 / (block + 1)


def put_in(block: int) -> float:
    """What is put in before block `block` = 1, 2, ..."""
    return reserve(block - 1) - reserve(block)


def running_products(factors: Floats) -> Floats:
    """Products [..., n, stakes] of the factors up to each trajectory."""
    if factors.ndim == 2:
        return np.cumprod(factors, axis=0, dtype=np.float64)
    # numpy takes many rollouts' products against the grain of memory; one trajectory of all of them at a time is
    # the same products in the same order, three times as fast.
    products = factors.copy()
    for place in range(1, factors.shape[-2]):
        np.multiply(products[..., place - 1, :], products[..., place, :], out=products[..., place, :])
    return products


def grown(capital: Floats, growth: Floats, block: int) -> Floats:
    """Capital per stake [..., stakes] after a full block, with what is put in before the next one."""
    return np.minimum(capital * growth, LARGEST) + put_in(block + 1)


def prefix_values(products: Floats, capital: Floats, shares: Floats, block: int) -> Floats:
    """E-values [..., n, tests] of every prefix that ends in a block.

    `products` are the factors' running products [..., n, stakes] within the block, `capital` what each stake had
    before it, `shares` the fixed mixtures [stakes, tests] whose columns sum to 1.
    """
    return products @ (capital[..., :, None] * shares) + reserve(block)


def capped(wealth: Floats, factors: Floats, ceiling: float) -> Floats:
    """Wealth per stake [..., stakes] after the factors [..., n, stakes], cut at `ceiling` after each of them."""
    if factors.shape[-2] == 0:
        return wealth
    products = running_products(factors)
    cuts = (ceiling / products).min(axis=-2)
    return products[..., -1, :] * np.minimum(wealth, cuts)
