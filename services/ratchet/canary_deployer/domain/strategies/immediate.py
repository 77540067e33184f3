"""Strategy `immediate`: all new trajectories at once, unwatched; the previous policy stays resident for an operator."""

from __future__ import annotations

from ratchet.canary_deployer.domain.rollout import State
from ratchet.canary_deployer.domain.strategies.base import Strategy

NAME = "immediate"
STRATEGY = Strategy(first=State.PROMOTED)
