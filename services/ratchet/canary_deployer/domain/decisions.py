"""Taking a decision: one new record, in which the rollout has moved and its outbox holds the announcements."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from ratchet.bus.message import cause_of
from ratchet.canary_deployer.domain.announcements import Announcer, endings, registration_cause
from ratchet.canary_deployer.domain.estimates import takes_too_long
from ratchet.canary_deployer.domain.gating import state_after_gates
from ratchet.canary_deployer.domain.rollout import (
    ITSELF,
    TERMINAL,
    WITH_TRAFFIC,
    Decision,
    Ended,
    GateResult,
    PendingEvent,
    Rollout,
    State,
    Verdict,
    checked_move,
)
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.verdicts import concerns, in_soak, suspicions
from ratchet.core.contract import ModelRollout, encode, named_id
from ratchet.core.contract.state import PolicyVersion, Route, ServedPolicy, WeightStep
from ratchet.core.rules.arms import served

WHY_SUPERSEDED = {
    State.GATING: "before it met traffic",
    State.AWAITING_APPROVAL: "before it met traffic",
    State.HELD: "after its deadline",
    State.SUSPENDED: "while it was suspended",
    State.RUNNING: "because it would have taken too long",
}
"""The states in which a newer candidate may take the place of an older one."""


def may_be_superseded(rollout: Rollout, rules: Rules) -> bool:
    """Whether a newer candidate may take the place of this rollout: never if an operator started it."""
    if rollout.actor != ITSELF:
        return False
    match rollout.state:
        case State.GATING | State.AWAITING_APPROVAL | State.SUSPENDED:
            return True
        case State.HELD:
            return rollout.age_s >= rules.deadline_s
        case State.RUNNING:
            return takes_too_long(rollout.forecast, rules)
        case _:
            return False


def newest_hash(before: Rollout | None, route: Route | None) -> str | None:
    """The end of the audit chain: the route knows it, too, where the record of the rollout before is gone."""
    if before is not None:
        return before.last_hash
    return route.audit_hash if route else None


def new_rollout(
    candidate: PolicyVersion, stable: ServedPolicy | None, last_hash: str | None, decision: Decision, now: datetime
) -> Rollout:
    """A rollout of `candidate` before its gates. The audit chain goes on from `last_hash`."""
    rollout_id = named_id("rollout", candidate.role, candidate.version, now.isoformat(), last_hash)
    return Rollout(
        rollout_id=rollout_id,
        role=candidate.role,
        state=State.GATING,
        candidate=served(candidate),
        stable=stable,
        created_at=now,
        actor=decision.actor,
        reason=decision.reason,
        approval=decision.approval or "automated",
        salt=named_id("salt", rollout_id),
        last_hash=last_hash,
        cause=registration_cause(candidate),
    )


def new_revert(
    policy: PolicyVersion, route: Route, before: Rollout | None, decision: Decision, now: datetime
) -> Rollout:
    """A rollout back to `policy`, which served before the role's stable one. It ends the one that is active."""
    ended = None
    if before is not None and before.active:
        ended = Ended(before.rollout_id, before.candidate, before.state in WITH_TRAFFIC)
    back = new_rollout(policy, route.stable, newest_hash(before, route), decision, now)
    return msgspec.structs.replace(back, strategy="immediate", ended=ended, parked=True)


def known_hashes(rollout: Rollout) -> set[str | None]:
    """Of the last decision that the record knows, and of the one before where its announcement is pending."""
    pending = [event.body for event in rollout.outbox if event.topic == ModelRollout.TOPIC]
    before = {msgspec.json.decode(body, type=ModelRollout).previous_hash for body in pending}
    return {rollout.last_hash, *before}


def caught_up(rollout: Rollout, route: Route, log: Sequence[ModelRollout]) -> tuple[Rollout, str | None]:
    """A record that an older copy may have replaced; and, where the log has a later decision, why it decides nothing.

    The chain then goes on from the log, and stable is what the route says: the end of this rollout undoes no promotion.
    """
    if not log or log[-1].hash in known_hashes(rollout):
        return rollout, None
    taken = [decision.sequence + 1 for decision in log if decision.rollout_id == rollout.rollout_id]
    healed = msgspec.structs.replace(
        rollout,
        last_hash=log[-1].hash,
        decisions=max(rollout.decisions, *taken, 0),
        outbox=(),
        stable=route.stable,
    )
    if rollout.active and route.stable == rollout.candidate:
        return msgspec.structs.replace(healed, state=State.PROMOTED, finished_at=log[-1].timestamp), None
    return healed, f"its record was set back: it lacks the decision to {log[-1].verdict} of {log[-1].timestamp:%F %T}"


def with_gate_result(rollout: Rollout, result: GateResult) -> Rollout:
    """The rollout with the result of one more gate."""
    others = tuple(known for known in rollout.gates if known.gate != result.gate)
    return msgspec.structs.replace(rollout, gates=(*others, result))


def apply_decision(
    rollout: Rollout,
    decision: Decision,
    rules: Rules,
    announcer: Announcer,
    policies: Sequence[PolicyVersion],
    now: datetime,
) -> Rollout:
    """The rollout after `decision`; `policies` as in `Announcer.announcements`. Raises `IllegalMove`.

    The decision follows from the candidate's registration, every other announcement from the decision.
    """
    target = checked_move(rollout.state, decision.verdict, _target(rollout, decision, rules))
    noticed = rollout.noticed
    if decision.verdict is Verdict.HOLD:
        noticed = tuple(sorted({*noticed, *concerns(rollout, rules)}))
    moved = msgspec.structs.replace(
        rollout,
        state=target,
        reason=decision.reason,
        approval=decision.approval or rollout.approval,
        decisions=rollout.decisions + 1,
        finished_at=(rollout.finished_at or now) if target in TERMINAL else None,
        parked=rollout.parked and decision.verdict is not Verdict.RESUME,
        noticed=noticed,
    )
    moved = _staged(moved, rollout, decision.verdict, rules, now)
    announced, *others = announcer.announcements(moved, decision, rules, policies, now)
    others += endings(rollout.state, moved, decision, now)
    cause = cause_of(announced, rollout.cause)
    outbox = [
        PendingEvent(announced.TOPIC, encode(announced).decode(), rollout.cause),
        *(PendingEvent(message.TOPIC, encode(message).decode(), cause) for message in others),
    ]
    return msgspec.structs.replace(moved, outbox=tuple(outbox), last_hash=announced.hash)


def _target(rollout: Rollout, decision: Decision, rules: Rules) -> State:
    match decision.verdict:
        case Verdict.START:
            return state_after_gates(rollout.strategy, soaks=rules.soaks)
        case Verdict.PROMOTE:
            watched = rollout.state is State.RUNNING and decision.actor == ITSELF and rules.soaks
            return State.SOAKING if watched else State.PROMOTED
        case Verdict.RESUME if rollout.parked and not rollout.active:
            return rollout.state
        case Verdict.RESUME if in_soak(rollout, rules):
            return State.SOAKING
        case Verdict.HOLD:
            return State.AWAITING_APPROVAL if rollout.state is State.GATING else State.HELD
        case _:
            return _PLAIN_TARGET[decision.verdict]


_PLAIN_TARGET = {
    Verdict.ADVANCE: State.RUNNING,
    Verdict.RESUME: State.RUNNING,
    Verdict.PAUSE: State.PAUSED,
    Verdict.ROLL_BACK: State.ROLLED_BACK,
    Verdict.REFUSE: State.REFUSED,
    Verdict.ABORT: State.ABORTED,
    Verdict.SUSPEND: State.SUSPENDED,
    Verdict.WITHDRAW: State.WITHDRAWN,
    Verdict.SUPERSEDE: State.SUPERSEDED,
    Verdict.REVERT: State.REVERTED,
}


def _staged(rollout: Rollout, before: Rollout, verdict: Verdict, rules: Rules, now: datetime) -> Rollout:
    """The rollout with the stage and the weight of its new state; `before`: as it was."""
    if verdict is Verdict.SUSPEND:
        return _suspended(rollout, before, rules, now)
    if verdict is Verdict.RESUME and rollout.active:
        return _resumed(rollout, before, rules, now)
    if rollout.state is State.SOAKING:
        return _entered(rollout, len(rules.stages), rules.full_weight, rules, now)
    if verdict is Verdict.START:
        return _entered(rollout, rollout.first_stage, rules.stages[rollout.first_stage].weight, rules, now)
    if verdict is Verdict.ADVANCE:
        return _entered(rollout, rollout.stage + 1, rules.stages[rollout.stage + 1].weight, rules, now)
    return rollout


def _suspended(rollout: Rollout, before: Rollout, rules: Rules, now: datetime) -> Rollout:
    """At the weight of a suspended canary, at 0 the second time; its deadline begins with the first."""
    if before.state is State.SUSPENDED:
        return _weighted(rollout, 0.0, rules, now)
    return msgspec.structs.replace(_weighted(rollout, rules.suspended_weight, rules, now), age_s=0.0)


def _resumed(rollout: Rollout, before: Rollout, rules: Rules, now: datetime) -> Rollout:
    """As before it was stopped; a canary that was suspended begins its stage again."""
    resumed = msgspec.structs.replace(rollout, age_s=0.0)
    if before.state is not State.SUSPENDED:
        return resumed
    weight = rules.full_weight if rollout.state is State.SOAKING else rules.stages[rollout.stage].weight
    return _entered(msgspec.structs.replace(resumed, overruled=suspicions(before)), rollout.stage, weight, rules, now)


def _entered(rollout: Rollout, stage: int, weight: float, rules: Rules, now: datetime) -> Rollout:
    """The rollout at the beginning of a stage."""
    weighted = _weighted(rollout, weight, rules, now)
    return msgspec.structs.replace(
        weighted,
        stage=stage,
        stage_since=weighted.schedule[-1].at,
        stage_age_s=0.0,
        stage_base=rollout.statistics.canary.trajectories,
    )


def _weighted(rollout: Rollout, weight: float, rules: Rules, now: datetime) -> Rollout:
    """The new weight holds from a little later on, so that no gateway learns of it after it began.

    It never begins before the weight that it replaces: a deployer whose clock was set back would else decide a weight
    that no gateway ever uses, since the latest step counts. Where a clock runs ahead, the weight holds later.
    """
    since = now + timedelta(seconds=rules.lead_s)
    if rollout.schedule:
        since = max(since, rollout.schedule[-1].at + timedelta(milliseconds=1))
    return msgspec.structs.replace(rollout, schedule=(*rollout.schedule, WeightStep(at=since, weight=weight)))
