"""A rollout: its states, the moves between them, and the record that survives a restart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from ratchet.bus.message import Cause, JsonObject, Value, decode
from ratchet.canary_deployer.domain.estimates import Forecast
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.subjects import SubjectsBefore
from ratchet.canary_deployer.domain.trajectories import Compared
from ratchet.core.contract import MESSAGES
from ratchet.core.contract.http.rollouts import CostCap, Horizon
from ratchet.core.contract.state import ServedPolicy, WeightStep
from ratchet.core.contract.values import OPAQUE, Amount, Count, Role, Sha256, Text, Uuid, listed
from ratchet.core.errors import WrongState


class State(StrEnum):
    """Where a rollout is."""

    GATING = "gating"
    """Its gates run; no traffic."""
    AWAITING_APPROVAL = "awaiting_approval"
    """Its gates could not decide; an operator decides."""
    RUNNING = "running"
    """Takes canary traffic and moves through the stages."""
    PAUSED = "paused"
    """An operator froze the stage; a rollback is still possible."""
    HELD = "held"
    """Undecided at the deadline, or the figures raise a concern; an operator decides."""
    SUSPENDED = "suspended"
    """Worse for the traffic so far, by single trajectories: without traffic until an operator decides, or subjects have
    shown that it is worse."""
    SOAKING = "soaking"
    """The evidence suffices for promotion; the tests still compare with the hold-back, and it has to last."""
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    REFUSED = "refused"
    ABORTED = "aborted"
    """An operator withdrew the candidate before it had traffic."""
    WITHDRAWN = "withdrawn"
    """It was suspended, and no operator decided before the deadline."""
    SUPERSEDED = "superseded"
    """A newer candidate took its place before a verdict."""
    REVERTED = "reverted"
    """An operator undid a promotion: the candidate is the policy that served before, and serves again."""


class Verdict(StrEnum):
    """A decision about a rollout."""

    START = "start"
    ADVANCE = "advance"
    HOLD = "hold"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"
    REFUSE = "refuse"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort"
    SUSPEND = "suspend"
    WITHDRAW = "withdraw"
    SUPERSEDE = "supersede"
    REVERT = "revert"


ITSELF = "canary_deployer"
"""Actor of every decision that no operator took."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, who took it and why."""

    verdict: Verdict
    reason: str
    actor: str
    approval: str | None = None
    """New approval status, when an operator's act changes it."""


OPERATORS_MAY: dict[State, tuple[str, ...]] = {
    State.GATING: ("rollback", "revert"),
    State.AWAITING_APPROVAL: ("approve", "rollback", "revert"),
    State.RUNNING: ("pause", "promote", "rollback", "revert"),
    State.PAUSED: ("resume", "promote", "rollback", "revert"),
    State.HELD: ("resume", "promote", "rollback", "revert"),
    State.SUSPENDED: ("resume", "promote", "rollback", "revert"),
    State.SOAKING: ("promote", "rollback", "revert"),
}
"""The verbs of `ratchet rollout` by state. Once a rollout has ended: `start`, and `revert` of the last promotion."""

MOVES: dict[tuple[State, Verdict], frozenset[State]] = {
    (State.GATING, Verdict.START): frozenset({State.RUNNING, State.SOAKING}),
    (State.GATING, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.GATING, Verdict.HOLD): frozenset({State.AWAITING_APPROVAL}),
    (State.GATING, Verdict.REFUSE): frozenset({State.REFUSED}),
    (State.GATING, Verdict.ABORT): frozenset({State.ABORTED}),
    (State.GATING, Verdict.SUPERSEDE): frozenset({State.SUPERSEDED}),
    (State.GATING, Verdict.REVERT): frozenset({State.REVERTED}),
    (State.AWAITING_APPROVAL, Verdict.START): frozenset({State.RUNNING, State.SOAKING}),
    (State.AWAITING_APPROVAL, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.AWAITING_APPROVAL, Verdict.ABORT): frozenset({State.ABORTED}),
    (State.AWAITING_APPROVAL, Verdict.SUPERSEDE): frozenset({State.SUPERSEDED}),
    (State.RUNNING, Verdict.ADVANCE): frozenset({State.RUNNING}),
    (State.RUNNING, Verdict.PAUSE): frozenset({State.PAUSED}),
    (State.RUNNING, Verdict.HOLD): frozenset({State.HELD}),
    (State.RUNNING, Verdict.PROMOTE): frozenset({State.SOAKING, State.PROMOTED}),
    (State.RUNNING, Verdict.ROLL_BACK): frozenset({State.ROLLED_BACK}),
    (State.RUNNING, Verdict.SUSPEND): frozenset({State.SUSPENDED}),
    (State.RUNNING, Verdict.SUPERSEDE): frozenset({State.SUPERSEDED}),
    (State.PAUSED, Verdict.RESUME): frozenset({State.RUNNING}),
    (State.PAUSED, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.PAUSED, Verdict.ROLL_BACK): frozenset({State.ROLLED_BACK}),
    (State.PAUSED, Verdict.SUSPEND): frozenset({State.SUSPENDED}),
    (State.HELD, Verdict.RESUME): frozenset({State.RUNNING, State.SOAKING}),
    (State.HELD, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.HELD, Verdict.ROLL_BACK): frozenset({State.ROLLED_BACK}),
    (State.HELD, Verdict.SUSPEND): frozenset({State.SUSPENDED}),
    (State.HELD, Verdict.SUPERSEDE): frozenset({State.SUPERSEDED}),
    (State.SUSPENDED, Verdict.RESUME): frozenset({State.RUNNING, State.SOAKING}),
    (State.SUSPENDED, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.SUSPENDED, Verdict.ROLL_BACK): frozenset({State.ROLLED_BACK}),
    (State.SUSPENDED, Verdict.SUSPEND): frozenset({State.SUSPENDED}),
    (State.SUSPENDED, Verdict.WITHDRAW): frozenset({State.WITHDRAWN}),
    (State.SUSPENDED, Verdict.SUPERSEDE): frozenset({State.SUPERSEDED}),
    (State.SOAKING, Verdict.HOLD): frozenset({State.HELD}),
    (State.SOAKING, Verdict.PROMOTE): frozenset({State.PROMOTED}),
    (State.SOAKING, Verdict.ROLL_BACK): frozenset({State.ROLLED_BACK}),
    (State.SOAKING, Verdict.SUSPEND): frozenset({State.SUSPENDED}),
    (State.REVERTED, Verdict.RESUME): frozenset({State.REVERTED}),
    (State.ROLLED_BACK, Verdict.RESUME): frozenset({State.ROLLED_BACK}),
}
"""Every legal move: in this state, this verdict leads to one of these. An ended rollout can only be unparked."""

TERMINAL = frozenset(
    {
        State.PROMOTED,
        State.ROLLED_BACK,
        State.REFUSED,
        State.ABORTED,
        State.WITHDRAWN,
        State.SUPERSEDED,
        State.REVERTED,
    }
)
"""No verdict leads out of these."""

WITH_TRAFFIC = frozenset({State.RUNNING, State.PAUSED, State.HELD, State.SUSPENDED, State.SOAKING})
"""The canary has a weight, which may be 0 while it is suspended; its lease is renewed, and its evidence grows."""


class IllegalMove(WrongState):
    """The act is not possible in this state; the message names those that are."""

    def __init__(self, state: State, act: str) -> None:
        possible = OPERATORS_MAY.get(state, ("start", "revert"))
        first = "approve it first; " if act == Verdict.PROMOTE and State.AWAITING_APPROVAL is state else ""
        super().__init__(f"cannot {act} a rollout that is {state}: {first}possible: {', '.join(possible)}")


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of one gate for a candidate."""

    gate: str
    outcome: Annotated[str, listed("passed", "failed", "needs_approval", "waived", "not_run")]
    """`passed`, `failed`, `needs_approval`, (by an operator) `waived`, or `not_run`."""
    reason: str
    evidence: JsonObject = field(default_factory=dict[str, object])


PASSED, FAILED, NEEDS_APPROVAL, WAIVED, NOT_RUN = "passed", "failed", "needs_approval", "waived", "not_run"
"""Outcomes of a gate."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The rollout that a revert has ended."""

    rollout_id: Uuid
    candidate: ServedPolicy
    had_traffic: bool
    """Whether it had traffic."""


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A message that the deployer must publish even if this process dies first."""

    topic: Text
    body: str
    """Its JSON."""
    cause: Cause | None = None
    """The event that it follows from; None: it begins a chain."""

    def __post_init__(self) -> None:
        """A message that cannot be read makes its whole record `Unreadable`."""
        try:
            decode(self.body, MESSAGES[self.topic])
        except (KeyError, msgspec.DecodeError) as error:
            raise ValueError("an announcement that cannot be read") from error


class Rollout(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One try to replace a role's stable policy, key `<role>` in bucket `rollouts`; the newest one is kept.

    The route and the stages of its policies follow from it (`serving.py`), so a deployer that reads it after a crash
    can finish the decision.
    """

    rollout_id: Uuid
    role: Role
    """The role it belongs to."""
    state: State
    candidate: ServedPolicy
    """The policy under test."""
    created_at: datetime
    actor: str
    """Who started it: `canary_deployer` or an operator."""
    stable: ServedPolicy | None = None
    """The policy it is compared with; None for the first policy of a role."""
    strategy: str = "canary"
    """One of `gating.STRATEGIES`, once the gates are passed."""
    asked_strategy: str | None = None
    """The strategy that an operator chose for this rollout; None: the setting holds."""
    approval: Annotated[str, listed("automated", "manual_approved", "emergency_override")] = "automated"
    """`automated`, `manual_approved` or `emergency_override`."""
    reason: str = ""
    """Of the last decision."""
    gates: tuple[GateResult, ...] = ()
    override: bool = False
    """An operator waived the gates that can be waived."""
    salt: str = ""
    """Drawn into the hash that assigns a trajectory its arm."""
    schedule: tuple[WeightStep, ...] = ()
    """Its weight over time, oldest step first."""
    stage: Count = 0
    first_stage: Count = 0
    """Where its traffic begins: above 0 only after a passed shadow replay."""
    stage_since: datetime | None = None
    """When the stage began by the deployer's clock, for people; see `stage_age_s`."""
    stage_age_s: Amount = 0.0
    """For how long a deployer has watched the stage, in ticks of a monotonic clock."""
    stage_base: Count = 0
    """Finished canary trajectories when the stage began."""
    age_s: Amount = 0.0
    """For how long a deployer has watched the rollout since it began, or was last resumed."""
    statistics: Annotated[Statistics, OPAQUE] = msgspec.field(default_factory=Statistics)
    subjects_before: Annotated[SubjectsBefore, OPAQUE] = SubjectsBefore()
    """What the role's starts before the rollout say about its subjects; frozen when it starts."""
    overruled: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """How far each test by trajectory had come when an operator let a suspended canary go on."""
    noticed: tuple[str, ...] = ()
    """Concerns that the deployer has asked an operator about (`verdicts.concerns`)."""
    start_seq: Count = 0
    """Last message of RL_STARTS that is in `statistics`."""
    forecast: Annotated[Forecast | None, OPAQUE] = None
    """How long it was expected to take when it began; None where too little traffic allowed no forecast."""
    horizon: Annotated[Horizon | None, OPAQUE] = None
    """Frozen when it started; None before that: the setting holds."""
    cost: Annotated[CostCap | None, OPAQUE] = None
    """Whether cost is compared, up to what cap, and why; frozen when it started."""
    turn_seq: Count = 0
    """Last message of RL_TURNS that is in `statistics`."""
    feedback_seq: Count = 0
    """Last message of RL_FEEDBACK that is in `statistics`."""
    reward_seq: Count = 0
    """Last message of RL_REWARDS that is in `statistics`."""
    streams_made: str = ""
    """When those four streams were created: in a stream created anew, sequences stand for other messages."""
    decisions: Count = 0
    """How many decisions were taken: the next one's sequence."""
    last_hash: Sha256 | None = None
    """Hash of the role's last decision, in this rollout or the one before."""
    outbox: tuple[PendingEvent, ...] = ()
    """Announcements of the last decision that may not be published yet."""
    finished_at: datetime | None = None
    ended: Ended | None = None
    """The rollout that a revert has ended besides the promotion."""
    parked: bool = False
    """No candidate begins until an operator resumes the queue or starts a rollout."""
    term: Count = 0
    """Of the leader that wrote the record."""
    cause: Cause | None = None
    """The candidate's registration, from which all decisions follow; None when it is unknown."""

    @property
    def weight(self) -> float:
        """The canary's share of new trajectories, 0 without traffic."""
        return self.schedule[-1].weight if self.state in WITH_TRAFFIC and self.schedule else 0.0

    @property
    def active(self) -> bool:
        return self.state not in TERMINAL

    def under(self, rules: Rules) -> Rules:
        """The rules as they hold for this rollout: with what was frozen at its start."""
        share = 0.0 if rules.first_alone else self.subjects_before.mean_share
        horizon_s = rules.horizon_s if self.horizon is None else self.horizon.seconds
        cap_usd = self.cost.cap_usd if self.cost and rules.cost_cap_usd is None else None
        frozen = replace(rules, horizon_s=horizon_s, mean_share=share)
        return frozen if cap_usd is None else frozen.with_cost(cap_usd)

    @property
    def compared(self) -> Compared:
        """The versions and weights whose trajectories count."""
        weights = frozenset(step.weight for step in self.schedule)
        return Compared(
            rollout_id=self.rollout_id,
            stable_version=self.stable.version if self.stable else 0,
            canary_version=self.candidate.version,
            weights=weights,
            split=frozenset(self.subjects_before.split),
        )


STATISTICS = frozenset({"statistics", "forecast", "horizon", "cost", "subjects_before"})
"""JSON members of a record whose shapes change from version to version. The decisions stand in the others."""


def without_statistics(stored: bytes) -> Rollout | None:
    """A record whose statistics cannot be read, without them; None when the rest cannot be read either."""
    try:
        members = decode(stored, dict[str, msgspec.Raw])
        kept = {name: value for name, value in members.items() if name not in STATISTICS}
        return decode(msgspec.json.encode(kept), Rollout)
    except msgspec.DecodeError:
        return None


def checked_move(state: State, verdict: Verdict, target: State) -> State:
    """`target`, if `verdict` leads there from `state`. Raises `IllegalMove`."""
    if target not in MOVES.get((state, verdict), frozenset()):
        raise IllegalMove(state, verdict)
    return target
