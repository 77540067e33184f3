"""Strategy `immediate`: all new trajectories at once, unwatched; the previous policy stays resident for a revert.

For the first policy of a role, which has nothing to be compared with, and for an operator who says so and overrides.
"""

from __future__ import annotations

from ratchet.canary_deployer.domain.rollout import State
from ratchet.canary_deployer.domain.strategies.base import Strategy

NAME = "immediate"
STRATEGY = Strategy(first=State.PROMOTED)
