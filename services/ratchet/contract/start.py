"""A trajectory starts on an arm: announced when the arm is drawn, before any engine is asked."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus.message import Message, named_id
from ratchet.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.contract.trajectory import PolicyClaim


class Start(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The canary's statistics take trajectories in the order in which the stream stored their starts."""

    TOPIC: ClassVar[str] = "agent.rl.start.v1"

    trajectory_id: str
    timestamp: datetime
    """When the arm was drawn, by the gateway's clock. Shown to people; no statistic uses it."""
    policy: PolicyClaim
    """The arm, the policy that serves it, and the canary weight that the draw was compared with."""
    role: str = DEFAULT_ROLE
    rollout_id: str | None = None
    """The rollout whose canary was on offer; None when there was none."""
    centres: dict[str, float] | None = None
    """By metric: the harm, 0..1, that the rollout's tests bet around, as the route said it when the arm was drawn."""
    latency_scale_ms: float | None = None
    """The latency that counts as a harm of one half, as the route said it when the arm was drawn."""

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        """One start for a trajectory in a role, however often it is announced."""
        return named_id("start", self.role, self.trajectory_id)
