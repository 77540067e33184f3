"""A trajectory starts on an arm: the gateway publishes this when it draws the arm, before it calls any engine."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus.message import Message, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.core.contract.trajectory import PolicyClaim


class Start(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The canary's statistics take trajectories in the order in which the stream stored their starts."""

    TOPIC: ClassVar[str] = "agent.rl.start.v1"

    trajectory_id: str
    timestamp: datetime
    """The time of the draw, by the gateway's clock. For people; no statistic uses it."""
    policy: PolicyClaim
    """The arm, the policy that serves it, and the canary weight of the draw."""
    role: str = DEFAULT_ROLE
    rollout_id: str | None = None
    """The rollout of the canary; None without one."""
    centres: dict[str, float] | None = None
    """By metric: the harm, 0..1, that the rollout's tests bet around, from the route at the time of the draw."""
    latency_scale_ms: float | None = None
    """The latency that counts as a harm of one half, from the route at the time of the draw."""

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        """One start for a trajectory in a role, however often it is published."""
        return named_id("start", self.role, self.trajectory_id)
