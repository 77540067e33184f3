"""A trajectory starts on an arm: the gateway publishes this when it draws the arm, before it calls any engine."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from ratchet.bus.message import Message, named_id
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.values import Positive, Role, Share, Uuid


class Start(Message, frozen=True, kw_only=True, omit_defaults=True):
    """The canary's statistics take trajectories in the order in which the stream stored their starts."""

    TOPIC: ClassVar[str] = "agent.rl.start.v1"

    trajectory_id: Uuid
    """Id of the trajectory. One that several roles answer starts once in each."""
    timestamp: datetime
    """The time of the draw, by the gateway's clock. For people; no statistic uses it."""
    policy: PolicyClaim
    """The arm, the policy that serves it, and the canary weight of the draw."""
    role: Role = DEFAULT_ROLE
    """The role this belongs to; it is published on the subject of the same role. Absent means `default`, the bare
    subject."""
    rollout_id: Uuid | None = None
    """The rollout of the canary; None without one."""
    centres: dict[str, Share] | None = None
    """By metric: the harm, 0..1, that the rollout's tests bet around, from the route at the time of the draw."""
    latency_scale_ms: Positive | None = None
    """The latency that counts as a harm of one half, from the route at the time of the draw."""

    @property
    def subject(self) -> str:
        return role_subject(self.TOPIC, self.role)

    @property
    def event_id(self) -> str:
        """One start for a trajectory in a role, however often it is published."""
        return named_id("start", self.role, self.trajectory_id)
