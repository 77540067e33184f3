"""The interface of gates, and of the servers and commands that gates use beside engines (`replicas`).

A gate checks a candidate before traffic. It passes, fails, or leaves the decision to an operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.live_calls import LiveCall
from ratchet.canary_deployer.domain.paired import Played
from ratchet.canary_deployer.domain.rollout import GateResult
from ratchet.canary_deployer.replicas import Inconclusive, ReplicaChecks
from ratchet.canary_deployer.settings import SafetyPlan, ShadowPlan
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.contract.turn import Turn
from ratchet.core.contract.workflows import PlannerRef, WorkflowExecution
from ratchet.core.errors import NotFound, RatchetError, Rejected, Unavailable
from ratchet.core.planning.learned import LearnedPlanner


class Gate(Protocol):
    """One check of a candidate."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Check the candidate. Raises `Unavailable` when that is impossible for now, and `GateGoesOn` from a gate that
        takes hours: the deployer asks again."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A gate that keeps something of a role from one check to the next."""

    def forget(self, role: str) -> None:
        """Drop it: no candidate of the role is at its gates any more, or another deployer has it."""
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

    async def unfit(self, policy: PolicyVersion) -> str | None:
        """Why the tasks show nothing of a candidate, as one that was made from them; None where they do."""
        ...

    async def play(self, policy: PolicyVersion) -> HeldoutRun:
        """Play all tasks, unless they show nothing of it."""
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
"""The next message of a policy; no tool is called. Raises `Unavailable`, `Rejected`, of those `Blocked`, and what
`BundleTools.bundle_of` does."""


class Blocked(Rejected):
    """Filters block the call: no answer, and no refusal by the policy."""


Judge = Callable[[str, Sequence[JsonObject]], Awaitable[HeldoutRun]]
"""What the role's evaluator says of answers: each has `task`, `messages`, `tools` and `answer`."""


@dataclass(frozen=True, slots=True)
class ReplayTools:
    """Servers and command of a shadow replay."""

    prompts: Callable[[PolicyVersion, int], Awaitable[LoggedPrompts]]
    """The newest ones, so many at most, that a candidate has not learned from. Raises `Unavailable` or `Rejected`."""
    complete: Complete
    judge: Judge


class LivePlace(NamedTuple):
    """A place in the stream of calls."""

    sequence: int
    """Of the last message before it."""
    made: str
    """When the stream was made: one that was made anew counts from 1 again."""


class CallsSince(NamedTuple):
    """The calls of a role behind a place, and the place after them."""

    calls: list[LiveCall]
    place: LivePlace
    made_anew: bool = False
    """The place was one of a stream that is gone."""


class LiveCalls(Protocol):
    """What agents ask now. All methods raise `Unavailable`."""

    async def newest(self) -> LivePlace:
        """After the newest call."""
        ...

    async def since(self, role: str, place: LivePlace, wait_s: float) -> CallsSince:
        """The calls of a role behind a place, some thousands at most; waits up to `wait_s` for the first."""
        ...

    async def turns(self, sequences: Sequence[int]) -> list[Turn]:
        """Whole calls. Raises `NotFound` for one that was erased, or dropped as too old."""
        ...

    async def erased(self, sequences: Collection[int], made: str) -> set[int]:
        """Those that were taken out of the stream as it was made then, though younger ones would still be there; all
        where it is gone, for nothing tells."""
        ...


@dataclass(frozen=True, slots=True)
class ShadowTools:
    """What live calls are mirrored with."""

    plans: Mapping[str, ShadowPlan]
    """By role; under `*` that of all others."""
    calls: LiveCalls
    complete_for: Callable[[PolicyVersion, ShadowPlan], Awaitable[Complete]]
    """Asks one candidate within the plan's budget, recorded nowhere; its calls raise `BudgetSpent`, too.

    Raises `Rejected` where a budget cannot be kept, and `Unavailable`.
    """
    judge: Judge
    bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]]
    """See `BundleTools`."""


class GateGoesOn(RatchetError):
    """A gate that takes hours has done a part of its work, as the words say: it is asked again."""

    def __init__(self, progress: str, again_in_s: float) -> None:
        super().__init__(progress)
        self.again_in_s = again_in_s


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
class PlannerTools:
    """What judges planners of workflows."""

    bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]]
    """See `BundleTools`."""
    planner_of: Callable[[PlannerRef], Awaitable[LearnedPlanner]]
    """Raises `NotFound`, `DigestMismatch`, `Rejected` or `Unavailable`."""
    executions: Callable[[PolicyVersion], Awaitable[Sequence[WorkflowExecution]]]
    """The newest ones that a policy planned. Raises `Rejected` or `Unavailable`."""


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
    shadow: ShadowTools | None = None
    """None where no role's candidates mirror live calls."""
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
    planners: PlannerTools | None = None
    """None where no policy plans workflows."""


BuildGate = Callable[[GateTools], Gate]
