"""Tests of the canary that stay valid at every moment: factors of wealth, and their products over prefixes.

**The order.** Trajectories are numbered 1, 2, ... in the order in which the stream stored their *starts*. Trajectory i
was announced with its arm A (canary with probability w), and with w, the centre m and the latency scale that its
gateway knew when it drew the arm. A metric is a harm in [0, 1], higher is worse: y1 if the canary answers, y0 if stable
does.

**What is assumed.** (1) The draw of i is independent of its two potential harms and of everything about the
trajectories before it: a salted hash does that, unless ids are chosen to match it. (2) A trajectory's harm depends on
its own arm alone; a canary that slows its neighbours down breaks this. (3) Whether and when a start is stored depends
neither on the arm nor on the harm: it is stored before the engine is asked, through one queue for both arms. The
sample-ratio test looks after (1) and (3).

**The martingale.** Let F be everything about trajectories 1 .. i-1: arms, weights, centres and *final* harms, also
those that became known later. w, m, the scale and every stake were fixed when i was drawn, from what was known of
trajectories that had started, so they are F-measurable however they were estimated: a centre from biased data costs
power, never validity. With

    Z = (harm - m) / w  on the canary arm,   Z = -(harm - m) / (1 - w)  on the stable arm

(1) and (2) give E[Z | F] = E[y1 - y0 | F] = D (Horvitz & Thompson 1952): the centre cancels. For a margin d and a stake
lambda >= 0 that keeps each factor positive,

    rollback   prod(1 + lambda (Z - d))   is a supermartingale while D <= d at every i ("not worse than the margin"),
    promotion  prod(1 + lambda (d - Z))   is one while D >= d at every i ("worse than the margin")

(betting: Waudby-Smith & Ramdas 2024; known propensities in sequential experiments: Howard, Ramdas, McAuliffe & Sekhon
2021). By Ville's inequality the *largest prefix* of either exceeds 1/alpha with probability at most alpha: all prefixes
at once, so every moment and every stopping rule is covered. In the order of *finishing* F would hold how fast the arms
are, and E[Z | F] = D fails: an arm that is merely faster shows its failures first.

**Pending trajectories.** A rollback factor rises with the harm of the canary and falls with that of stable. A pending
harm counts as 0 on the canary and 1 on stable, so the wealth of *every* prefix is at most what it will be once all is
known, and the largest prefix seen so far, at any moment, is at most the largest one of the full process. No waiting,
and no condition on how long a trajectory takes. A value that was used never changes: outcomes settle once
(`trajectories.py`).

**Mixtures.** An average of supermartingales is one: over stakes (fixed multiples of functions of w), over metrics
(fixed weights: the joint null is that *no* metric is worse than its margin) and over the time at which capital is put
in (below). All averages are taken *within* a prefix, the largest prefix afterwards: an average of maxima is no
e-value. The negation "some metric is worse" is a union; promotion therefore asks every metric by itself (Berger 1982).

**Stakes.** Rollback on rare events (failures, missing outcomes, first calls, safety) is conditional thinning: m = 0 and
lambda = w (1 - w) (theta - 1) / (w theta + 1 - w). At d = 0 the factor of an event is then the likelihood ratio of its
arm when the canary has theta times as many (Lindon & Malek 2022). Everything else bets multiples of w (1 - w).

**Capital is put in bit by bit.** Half of it bets from the first trajectory on; of the other half, 1/(m (m + 1)) is put
in before block m = 1, 2, ..., which sums to all of it. Each part is a supermartingale from its own beginning, so the
sum is one (Vovk & Wang 2021). Without this a canary that was good for hours would first have to win back what the test
lost meanwhile: it would be watched in name only. Late in a rollout, after m blocks, a canary that turns bad is caught
with 2 m (m + 1) times the evidence that a fresh one needs: ln 10,000 = 9 for m = 70, the 9,000th trajectory.

**The present is capped.** Rollback takes the largest prefix; promotion asks for the wealth at the present watermark.
Each stake's wealth is cut at `ceiling` after every trajectory: min(V f, c) <= V f, so it stays a supermartingale under
its null, and an early good hour can bank no more than the ceiling. A canary that was better and is now worse loses it
within a few hundred trajectories (ADR 23 compares ceilings: a lower one forgets sooner and promotes an equal canary
later).

**The unit may be a subject.** All of the above asks D <= d given everything before, *at every trajectory*: the
trajectories of one user whose tasks the canary does worse break that though it is equal on average. `subjects.py` makes
one factor of a subject's first trajectories, with the same stakes. Those factors are final, those of single
trajectories only suspend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RISK_RATIOS = np.array([1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0])
"""How many times as often the canary fails, under the alternatives that conditional thinning tests against."""

SHARPNESS = np.array([0.15, 0.3, 0.6, 1.2, 2.4, 4.8])
"""Stakes for bounded harms in units of w (1 - w): the best one is (effect beyond the margin) / (variance of harm)."""

SHIFTS = np.array([0.5, 0.8, 0.9, 1.1, 1.25, 2.0])
"""How many times as many canary trajectories as the weights say, under the alternatives of the sample-ratio test."""

LARGEST_STAKE = 0.95
"""Share of the wealth that one trajectory may cost."""

MIN_WEIGHT = 1e-3
"""A weight this close to 0 or 1 leaves nothing to compare: such trajectories are not tested."""


def thinning_factors(weight: Floats, gain: Floats, margin: float) -> Floats:
    """Rollback factors [..., n, stakes] of rare events: conditional thinning; the gain is Z - margin."""
    first = weight.ravel()[:1]
    is_one = bool((weight == first).all())  # as in most blocks: one weight needs no sorting
    weights, place = (first, np.zeros(1, np.intp)) if is_one else np.unique(weight, return_inverse=True)
    stakes = (weights * (1 - weights))[:, None] * (RISK_RATIOS - 1) / (weights[:, None] * (RISK_RATIOS - 1) + 1)
    largest = LARGEST_STAKE / (1 / (1 - weights) + margin)
    each = np.minimum(stakes, largest[:, None])[place if is_one else place.reshape(weight.shape)]
    return 1 + each * gain[..., None]


def rollback_factors(weight: Floats, centre: Floats, gain: Floats, margin: float) -> Floats:
    """Rollback factors [..., n, stakes] of a bounded harm; the gain is Z - margin."""
    return 1 + _stakes(weight, -lowest_difference(weight, centre) + margin) * gain[..., None]


def promotion_factors(weight: Floats, centre: Floats, gain: Floats, margin: float) -> Floats:
    """Promotion factors [..., n, stakes] of a bounded harm; the gain is margin - Z."""
    worst = np.maximum((1 - centre) / weight, centre / (1 - weight)) - margin
    return 1 + _stakes(weight, worst) * gain[..., None]


def ratio_factors(canary: Flags, weight: Floats) -> Floats:
    """Factors [..., n, shifts] of the sample-ratio test: likelihood ratios of the arms against their weights."""
    usual = weight[..., None] * (SHIFTS - 1) + 1
    return np.where(canary[..., None], SHIFTS, 1.0) / usual


def weighted_difference(canary: Flags, weight: Floats, harm: Floats, centre: Floats) -> Floats:
    """Z of the module's docstring."""
    return np.where(canary, (harm - centre) / weight, (centre - harm) / (1 - weight))


def lowest_difference(weight: Floats, centre: Floats) -> Floats:
    """The smallest Z that a trajectory can have, whichever arm it draws."""
    return -np.maximum(centre / weight, (1 - centre) / (1 - weight))


def _stakes(weight: Floats, worst: Floats) -> Floats:
    """One stake per sharpness; the worst possible trajectory leaves 1 - LARGEST_STAKE of the wealth."""
    return np.minimum(SHARPNESS * (weight * (1 - weight))[..., None], (LARGEST_STAKE / worst)[..., None])


FIRST_CAPITAL = 0.5
"""Bets from the first trajectory on."""

BLOCK = 128
"""Trajectories that are folded, stored and put under new capital together."""

LARGEST = 1e100
"""Wealth is cut here: beyond it no decision changes any more, and a product of BLOCK factors still fits a float."""


def reserve(block: int) -> float:
    """Capital that is not at stake yet during block `block` = 0, 1, ..."""
    return (1 - FIRST_CAPITAL) / (block + 1)


def put_in(block: int) -> float:
    """Capital that is put in before block `block` = 1, 2, ..."""
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


def grown_capital(capital: Floats, growth: Floats, block: int) -> Floats:
    """Capital per stake [..., stakes] after a full block, with the part that is put in before the next one."""
    return np.minimum(capital * growth, LARGEST) + put_in(block + 1)


def prefix_values(products: Floats, capital: Floats, shares: Floats, block: int) -> Floats:
    """E-values [..., n, tests] of every prefix that ends in a block.

    `products` are the factors' running products [..., n, stakes] within the block, `capital` that of each stake
    before it, `shares` the fixed mixtures [stakes, tests] whose columns sum to 1.
    """
    return products @ (capital[..., :, None] * shares) + reserve(block)


@dataclass(frozen=True, slots=True)
class Products:
    """Running products of a rollback's factors over a block: the costly part, worth keeping."""

    running: Floats
    """[..., n, stakes]."""
    highest: Floats
    """The largest of each stake, [..., 1, stakes]: no mixture of them has a larger prefix than theirs."""

    @classmethod
    def of(cls, factors: Sequence[Floats]) -> Products:
        """Of the factors [..., n, stakes] of several harms."""
        return cls.of_running(running_products(np.concatenate(factors, axis=-1)))

    @classmethod
    def of_running(cls, running: Floats) -> Products:
        """Of products that are made."""
        return cls(running, running.max(axis=-2, keepdims=True))


def largest_prefix(
    capital: Floats, block: int, mixtures: Floats, products: Sequence[Products], first_stake: int = 0
) -> Floats:
    """The largest e-value [..., tests] of a prefix that ends in these blocks, or right before the first, `block`.

    A block whose highest products, all at once, would not exceed it has no prefix that does. Stakes before the first
    one are left out of the products.
    """
    largest = capital @ mixtures + reserve(block)
    if not products:
        return largest
    each = [capital]
    for number, part in enumerate(products[:-1], block):
        each.append(grown_capital(each[-1], part.running[..., -1, first_stake:], number))
    highest = np.concatenate([part.highest[..., first_stake:] for part in products], axis=-2)
    reserves = np.array([reserve(number) for number in range(block, block + len(products))])
    bounds = (highest * np.stack(each, axis=-2)) @ mixtures + reserves[:, None]
    higher = (bounds > largest[..., None, :]).any(axis=(*range(bounds.ndim - 2), -1))
    for place in np.flatnonzero(higher).tolist():
        if (bounds[..., place, :] > largest).any():
            running = products[place].running[..., first_stake:]
            values = prefix_values(running, each[place], mixtures, block + place)
            largest = np.maximum(largest, values.max(axis=-2))
    return largest


def capped_wealth(wealth: Floats, factors: Floats, ceiling: float) -> Floats:
    """Wealth per stake [..., stakes] after the factors [..., n, stakes], cut at `ceiling` after each of them."""
    if factors.shape[-2] == 0:
        return wealth
    products = running_products(factors)
    cuts = (ceiling / products).min(axis=-2)
    return products[..., -1, :] * np.minimum(wealth, cuts)
