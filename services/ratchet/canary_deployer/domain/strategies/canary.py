"""Strategy `canary`: stage by stage, promoted on evidence. The safe one, and the default."""

from __future__ import annotations

from ratchet.canary_deployer.domain.rollout import State
from ratchet.canary_deployer.domain.strategies.base import Strategy

NAME = "canary"
STRATEGY = Strategy(first=State.RUNNING)
