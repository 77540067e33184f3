"""Stability of a claim: the share of resamples of the subjects in which all three parts show its difference again.

The claim itself is not formed again: a resample tests whether its difference hangs on few subjects, not whether the
search would have come to it."""

from __future__ import annotations

import numpy as np

from ratchet.analyst.mining.base import Hypothesis
from ratchet.analyst.mining.measure import Sample, contrast
from ratchet.analyst.mining.testing import Pools

RESAMPLES = 20
KEPT = 0.8
"""Of the subjects, of the forming and the test parts alike."""
APPEARS_Z = 1.645
"""One-sided 5 %: it appears where each of its three parts differs by that much, all towards the same sign."""
REPORTED = 0.7


def stability(pools: Pools, hypothesis: Hypothesis, seed: int) -> float:
    """0..1; it is no probability that the hypothesis is true."""
    samples = [pool.sample(hypothesis) for pool in (pools.forming, *pools.tests(hypothesis))]
    random = np.random.default_rng([seed, RESAMPLES])
    appears = 0
    for _ in range(RESAMPLES):
        z = np.array([contrast(hypothesis, _resampled(sample, random)).z for sample in samples])
        appears += bool((z >= APPEARS_Z).all() or (z <= -APPEARS_Z).all())
    return appears / RESAMPLES


def _resampled(sample: Sample, random: np.random.Generator) -> Sample:
    kept = random.random(int(sample.subject.max(initial=-1)) + 1) < KEPT
    return sample.of(kept[sample.subject])
