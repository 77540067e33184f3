"""The interface of gates, and of the servers and commands that gates use beside engines (`replicas`).

A gate checks a candidate before traffic. It passes, fails, or leaves the decision to an operator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import GateResult
from ratchet.canary_deployer.replicas import ReplicaChecks
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import PolicyVersion


class Gate(Protocol):
    """One check of a candidate."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Check the candidate. Raises `Unavailable` when that is impossible for now: the deployer asks again."""
        ...


ReadManifest = Callable[[PolicyVersion], Awaitable[PolicyManifest]]
"""The manifest of a policy, verified by digest. Raises `NotFound`, `DigestMismatch`, `Rejected` or `Unavailable`."""


@dataclass(frozen=True, slots=True)
class HeldoutRun:
    """One policy on the held-out tasks."""

    played: Played
    seconds: float
    problem: str | None = None
    """Why its results cannot be used: it failed, or did not finish in time."""
    cached: bool = False
    source: JsonObject = field(default_factory=dict[str, object])
    """Which tasks these were, where they are those of a file; equal for runs that may be compared."""


class Heldout(Protocol):
    """Plays held-out tasks with one policy."""

    tasks: int
    """How many it plays at most."""

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """Play all tasks."""
        ...

    async def play_or_recall(self, policy: PolicyVersion) -> HeldoutRun:
        """Play all tasks, or return the stored results of a policy that has played them before."""
        ...


class LoggedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of one logged call, as it was asked, and the settings that its answer was sampled with."""

    turn_id: str
    trajectory_id: str
    messages: list[JsonObject]
    tools: list[JsonObject] = []
    sampling: JsonObject = {}


class LoggedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that neither a candidate nor its ancestors have learned from, one of each task."""

    prompts: list[LoggedPrompt]
    left_out: dict[str, int] = {}
    """How many prompts were left out, by reason."""


Complete = Callable[[PolicyVersion, LoggedPrompt], Awaitable[JsonObject]]
"""The next message of a policy; no tool is called. Raises `Unavailable` or `Rejected`."""


@dataclass(frozen=True, slots=True)
class ReplayTools:
    """Servers and command of a shadow replay."""

    prompts: Callable[[PolicyVersion, int], Awaitable[LoggedPrompts]]
    """The newest ones, so many at most, that a candidate has not learned from. Raises `Unavailable` or `Rejected`."""
    complete: Complete
    judge: Callable[[str, Sequence[JsonObject]], Awaitable[HeldoutRun]]
    """What the role's evaluator says of answers: each has `task`, `messages`, `tools` and `answer`."""


@dataclass(frozen=True, slots=True)
class GateTools:
    """Everything that a gate can be built from. A gate takes the members that it needs."""

    checks: ReplicaChecks
    """Asks every replica of the role's engine."""
    read_manifest: ReadManifest
    warmup_prompts: Sequence[str]
    approval: bool
    """An operator has to agree to every candidate."""
    replay: ReplayTools | None = None
    """None when no evaluator is configured."""
    task_files: Mapping[str, Heldout] = field(default_factory=dict[str, Heldout])
    """What plays the held-out tasks of a role; under `*` that of all other roles."""


BuildGate = Callable[[GateTools], Gate]
