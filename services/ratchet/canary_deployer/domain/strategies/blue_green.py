"""Strategy `blue_green`: all new trajectories at once but the hold-back, watched for one soak period.

The hold-back (5 %) is what the rollback tests compare with; the previous policy stays resident, so that a rollback is
one write. When the soak passes without an alarm the hold-back goes too.
"""

from __future__ import annotations

from ratchet.canary_deployer.domain.rollout import State
from ratchet.canary_deployer.domain.strategies.base import Strategy

NAME = "blue_green"
STRATEGY = Strategy(first=State.SOAKING)
