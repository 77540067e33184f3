"""Which trajectories are too old to learn from, and how far the rest is off-policy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.contract.snapshot import Call

MAX_STALENESS = 8
"""Policy versions between a call and the policy that is trained; older calls are dropped."""

MIN_ESS = 0.3
"""Below this effective sample size (as a fraction) the data says too little about the policy: stop."""


def is_fresh(calls: Sequence[Call], current_version: int | None, limit: int = MAX_STALENESS) -> bool:
    """Whether no call is more than `limit` versions behind. Calls of unknown version are judged by their weights."""
    versions = [call.policy_version for call in calls if call.policy_version is not None]
    return current_version is None or not versions or current_version - min(versions) <= limit


def effective_sample_size(log_weights: Sequence[float]) -> float:
    """(sum w)^2 / (N sum w^2) of the untruncated weights, in (0, 1]; 1 when there are none (Kish 1965)."""
    if not log_weights:
        return 1.0
    top = max(log_weights)  # the scale cancels; this keeps the exponentials finite
    weights = [math.exp(value - top) for value in log_weights]
    return sum(weights) ** 2 / (len(weights) * sum(weight * weight for weight in weights))
