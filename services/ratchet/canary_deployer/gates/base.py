"""The interface of gates, and of the servers and commands that gates use beside engines (`replicas`).

A gate checks a candidate before traffic. It passes, fails, or leaves the decision to an operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import GateResult
from ratchet.canary_deployer.replicas import Inconclusive, ReplicaChecks
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import NotFound, Rejected, Unavailable


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


OnAnswer = Callable[[], None]
"""After each answer; what it raises ends the playing."""


class Heldout(Protocol):
    """Plays held-out tasks, or those of a suite, with one policy."""

    tasks: int
    """How many it plays at most."""

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """Play all tasks."""
        ...

    async def play_or_recall(self, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        """Play all tasks, or return the stored results of a policy that has played them before."""
        ...

    async def due(self, policy: PolicyVersion) -> int:
        """How many answers `play_or_recall` needs: none where results are stored."""
        ...


class LoggedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of one logged call, as it was asked, and the settings that its answer was sampled with."""

    turn_id: str
    trajectory_id: str
    messages: list[JsonObject]
    tools: list[JsonObject] = []
    sampling: JsonObject = {}
    metadata: JsonObject = {}
    parameters: JsonObject = {}
    """What else the request asked for, where the candidate is to be asked the same."""


class LoggedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that neither a candidate nor its ancestors have learned from, one of each task."""

    prompts: list[LoggedPrompt]
    left_out: dict[str, int] = {}
    """How many prompts were left out, by reason."""


Complete = Callable[[PolicyVersion, LoggedPrompt], Awaitable[JsonObject]]
"""The next message of a policy; no tool is called. Raises `Unavailable` or `Rejected`."""


Judge = Callable[[str, Sequence[JsonObject]], Awaitable[HeldoutRun]]
"""What the role's evaluator says of answers: each has `task`, `messages`, `tools` and `answer`."""


@dataclass(frozen=True, slots=True)
class ReplayTools:
    """Servers and command of a shadow replay."""

    prompts: Callable[[PolicyVersion, int], Awaitable[LoggedPrompts]]
    """The newest ones, so many at most, that a candidate has not learned from. Raises `Unavailable` or `Rejected`."""
    complete: Complete
    judge: Judge


Ask = Callable[[PolicyVersion, LoggedPrompt, int | None], Awaitable[None]]
"""Have a policy answer, in so many tokens at most, through the gateway. Raises `Rejected` with its words or the
provider's, `NotFound` where one of them does not know policy or model, and `Unavailable`."""


UNKNOWN_TIMES = 5
"""A gateway that has just started knows a new policy within seconds: 404 so often, ever more seldom, is an answer."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Asks, and counts by policy how often nothing came of it."""

    ask: Ask
    doubts: Counter[str] = field(default_factory=Counter[str])

    async def refusal(self, policy: PolicyVersion, prompt: LoggedPrompt, most_tokens: int | None) -> str | None:
        """Why the policy cannot answer, in the gateway's or the provider's words; None where it answers.

        Raises `Inconclusive` for what may pass.
        """
        try:
            await self.ask(policy, prompt, most_tokens)
        except (NotFound, Unavailable) as error:
            self.doubts[policy.name] += 1
            times = self.doubts[policy.name]
            if isinstance(error, NotFound) and times >= UNKNOWN_TIMES:
                del self.doubts[policy.name]
                return str(error)
            raise Inconclusive(f"{policy.name} could not be asked: {error}", times).quoting() from error
        except Rejected as error:
            return str(error)
        self.doubts.pop(policy.name, None)
        return None


@dataclass(frozen=True, slots=True)
class BundleTools:
    """What gates of bundles ask."""

    bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]]
    """Raises `NotFound`, `DigestMismatch`, `Rejected` or `Unavailable`; so does `weights_of`."""
    weights_of: Callable[[PolicyVersion], Awaitable[PolicyVersion | None]]
    """The policy that an engine holds for one; None where an upstream answers."""
    asking: Asking
    recorded: Callable[[str, int], Awaitable[LoggedPrompts]] | None = None
    """So many requests of a role's last week; None where no history is known. Raises `Unavailable` or `Rejected`."""


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
    safety_plans: Mapping[str, SafetyPlan] = field(default_factory=dict[str, SafetyPlan])
    """Which safety suites a role's candidates play; under `*` those of all other roles."""
    suite_players: Mapping[str, Heldout] = field(default_factory=dict[str, Heldout])
    """What plays a suite, by its name."""
    regression: Mapping[str, Heldout] = field(default_factory=dict[str, Heldout])
    """What plays suite `regression` of a role; under `*` that of all other roles."""
    bundles: BundleTools | None = None
    """None where no policy is a bundle."""


BuildGate = Callable[[GateTools], Gate]
