"""What every part of a role's controller works with."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ratchet.bus.kv import Bucket
from ratchet.bus.message import Cause
from ratchet.canary_deployer.domain.announcements import Announcer
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.gates.base import Gate
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.nats_events import EventSource
from ratchet.core.contract import Message, ModelRollout
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.service.audit import AuditLog
from ratchet.core.service.leadership import Lead


class Publish(Protocol):
    """Stores messages that follow from one event; returns when all are stored."""

    async def __call__(self, messages: Sequence[Message], *, cause: Cause | None = None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class RoleContext:
    """One role, with the stores, servers and rules that its controller needs."""

    role: str
    rules: Rules
    """Those of the role."""
    policies: KvPolicies
    rollouts: Bucket[Rollout]
    chunks: Bucket[Chunk]
    publish: Publish
    lead: Lead
    announcer: Announcer
    audit: AuditLog
    source: EventSource
    outcome_times: Callable[[PolicyVersion, float], Awaitable[Sequence[float]]]
    """How long a policy's outcomes took, of those known within so many seconds. Raises `Unavailable` or `Rejected`."""
    trajectory_costs: Callable[[PolicyVersion], Awaitable[Sequence[float | None]]]
    """What a policy's trajectories of the last week cost, None where a call has no price. Raises as `outcome_times`."""
    decisions_of: Callable[[str], Awaitable[Sequence[ModelRollout]]]
    """The decisions about a role that the log still has, in order. Raises `Unavailable`."""
    gates: Mapping[str, Gate]
    """By name, in the order in which they run."""
    answering: Callable[[str], Awaitable[Collection[str]]]
    """The names of a role's replicas that answer. Raises `Unavailable` when none does."""
    weights_of: Callable[[PolicyVersion], Awaitable[PolicyVersion | None]]
    """The policy that an engine holds for one; None where an upstream answers. Raises an error of the tree."""
    strategy: str
    """`canary`, `blue_green` or `auto`."""
    now: Callable[[], datetime]
    monotonic: Callable[[], float] = time.monotonic
    lease_s: float = 5.0
    """The canary's lease is renewed this often; gateways fall back to stable after 20 s without renewal."""
    tick_s: float = 0.5
    """Longest pause between two looks at new trajectories."""
    longest_tick_s: float = 15.0
    """This much of a longer pause between two ticks counts: gateways drop a canary that was not renewed for 20 s."""
