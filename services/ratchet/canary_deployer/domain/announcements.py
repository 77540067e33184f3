"""What the world is told about a decision: the decision itself, the policy's new state, an alert."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ratchet.canary_deployer.domain.audit import sealed
from ratchet.canary_deployer.domain.rollout import NOT_RUN, PASSED, GateResult, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.statistics import ArmCounts, Statistics, e_values
from ratchet.canary_deployer.domain.verdicts import ITSELF, Decision
from ratchet.messages import Alert, JsonObject, ModelDeployed, ModelRollout, named_id
from ratchet.messages.base import Cause
from ratchet.messages.deployment import (
    DeploymentConfig,
    DeploymentMetadata,
    ModelInfo,
    RampStep,
    RolloutStage,
    ValidationResults,
)
from ratchet.messages.state import PolicyVersion

HELDOUT = "heldout_tasks"
SAFETY_SUITE = "safety_suite"
"""The gate behind `safety_checks_passed`. None ships: without one the event says false, and `checks` says why."""
CHECKS = ("probe", "warmup", HELDOUT, "approval", SAFETY_SUITE)
"""What every event names among its checks, whether it ran or not."""

DEPLOYED_STATE: dict[Verdict, str] = {
    Verdict.START: "canary",
    Verdict.ADVANCE: "canary",
    Verdict.PROMOTE: "canary",
    Verdict.ROLL_BACK: "rolled_back",
    Verdict.REFUSE: "aborted",
    Verdict.ABORT: "aborted",
    Verdict.SUPERSEDE: "superseded",
    Verdict.REVERT: "promoted",
}
"""State of the policy after a verdict; a promotion that is complete says `promoted`. Others change no policy."""

SEVERITY = {
    Verdict.ROLL_BACK: "critical",
    Verdict.REFUSE: "warning",
    Verdict.HOLD: "warning",
    Verdict.REVERT: "warning",
}
"""Verdicts that a person should hear of."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What announcements say about the candidate and where it is served."""

    policy: PolicyVersion
    endpoint: str
    serving_platform: str = "engine_local"
    taken_back: tuple[PolicyVersion, ...] = ()
    """Of a revert: the policy whose promotion is undone, and the canary that ends with it."""


def announcements(
    rollout: Rollout, decision: Decision, rules: Rules, facts: Facts, now: datetime
) -> tuple[ModelRollout, *tuple[ModelDeployed | Alert, ...]]:
    """The sealed decision of the rollout that has just moved, and what follows from it."""
    told = _decision(rollout, decision, rules, now)
    extra: list[ModelDeployed | Alert] = []
    if decision.verdict in DEPLOYED_STATE:
        extra.append(_deployed(rollout, decision, rules, facts, now))
    if rollout.state is State.REVERTED and decision.verdict is Verdict.REVERT:
        extra += [_taken_back(rollout, policy, facts, now) for policy in facts.taken_back]
    if decision.verdict in SEVERITY and (decision.verdict is not Verdict.ROLL_BACK or decision.actor == ITSELF):
        extra.append(_alert(rollout, decision, now))
    return (told, *extra)


def registration(policy: PolicyVersion, facts: Facts, now: datetime) -> ModelDeployed:
    """A new policy is known; nothing was checked yet."""
    return ModelDeployed(
        deployment_id=named_id("registration", policy.role, policy.version),
        training_job_id=policy.training_job_id or named_id("no job", policy.name),
        timestamp=now,
        role=policy.role,
        state="registered",
        policy_version=policy.version,
        adapter_digest=policy.digest,
        reason=policy.reason,
        model_info=_model_info(policy),
        deployment_config=_config(facts, "canary", 0.0),
        validation_results=validation(()),
        metadata=DeploymentMetadata(deployed_by=ITSELF, approval_status="automated"),
    )


def superseded(facts: Facts, reason: str, now: datetime) -> ModelDeployed:
    """A candidate that never began makes room for a newer one."""
    return msgspec.structs.replace(registration(facts.policy, facts, now), state="superseded", reason=reason)


def registered(policy: PolicyVersion) -> Cause | None:
    """The event of `registration` as a cause; None for a policy that no job made."""
    if policy.cause is None:
        return None
    told = registration(policy, Facts(policy, ""), policy.created_at)
    return Cause(event_id=told.event_id, correlation_id=policy.cause.correlation_id)


def validation(gates: tuple[GateResult, ...]) -> ValidationResults:
    """The gates' results in the words of `model.deployed`; a gate that did not run has not passed."""
    found = {result.gate: result for result in gates}
    passed = {name for name, result in found.items() if result.outcome == PASSED}
    checks = {name: found[name].outcome if name in found else NOT_RUN for name in (*CHECKS, *found)}
    heldout: dict[str, Any] = dict(found[HELDOUT].evidence) if HELDOUT in found else {}
    scores = {name: heldout[name] for name in ("candidate_score", "stable_score", "difference") if name in heldout}
    return ValidationResults(
        benchmark_passed=HELDOUT in passed,
        safety_checks_passed=SAFETY_SUITE in passed,
        checks=checks,
        performance_regression=bool(heldout.get("regression", False)),
        benchmark_scores=scores or None,
    )


def evidence(rollout: Rollout, rules: Rules) -> JsonObject:
    """The numbers behind a decision."""
    shown: JsonObject = {"state": str(rollout.state), "strategy": rollout.strategy, "approval": rollout.approval}
    if rollout.gates:
        shown["gates"] = [msgspec.to_builtins(result) for result in rollout.gates]
    if rollout.forecast is not None:
        shown["forecast"] = rollout.forecast.shown()
    if rollout.schedule:
        shown |= {"arms": arms(rollout.watch.statistics), "differences": differences(rollout.watch.statistics, rules)}
        shown["thresholds"] = {"rollback": rules.rollback_threshold, "promotion": rules.promotion_threshold}
    return shown


def arms(statistics: Statistics) -> JsonObject:
    """Both arms in words and numbers; trajectories whose arm changed belong to neither."""
    return {"stable": _arm(statistics.stable), "canary": _arm(statistics.canary), "mixed": statistics.mixed}


def differences(statistics: Statistics, rules: Rules) -> JsonObject:
    """By metric: how much more harm the canary does, and what would still count as not worse."""
    found = {name: statistics.tests[name].difference for name in rules.metrics}
    return {
        name: {"difference": round(value, 4), "margin": rules.margin_of(name)}
        for name, value in found.items()
        if value is not None
    }


def share(count: int, of: int, none: str) -> float | str:
    """`count / of`, or `none` in words when there was nothing to count: 0 of 0 is not 0."""
    return round(count / of, 4) if of else none


def _arm(counts: ArmCounts) -> JsonObject:
    mean = counts.reward_mean
    return {
        "trajectories": counts.trajectories,
        "failures": counts.failures,
        "failure_rate": share(counts.failures, counts.trajectories, "no trajectories"),
        "timed_out": counts.timed_out,
        "reward_mean": round(mean, 4) if mean is not None else "no trajectories",
        "calls": counts.calls,
        "error_rate": share(counts.errors, counts.calls, "no calls"),
        "negative_feedback": share(counts.negative, counts.rated, "no feedback"),
        "safety_violations": counts.violations,
    }


def _decision(rollout: Rollout, decision: Decision, rules: Rules, now: datetime) -> ModelRollout:
    statistics = rollout.watch.statistics
    with_traffic = bool(rollout.schedule)
    told = ModelRollout(
        rollout_id=rollout.rollout_id,
        sequence=rollout.decisions - 1,
        timestamp=now,
        role=rollout.role,
        from_version=rollout.stable.version if rollout.stable else None,
        to_version=rollout.candidate.version,
        stage=RolloutStage(index=rollout.stage, weight=_traffic(rollout)),
        verdict=str(decision.verdict),
        reason=decision.reason,
        actor=decision.actor,
        e_values=e_values(statistics, rules) if with_traffic else None,
        samples={
            "stable": statistics.stable.trajectories,
            "canary": statistics.canary.trajectories,
            "mixed": statistics.mixed,
        },
        margin=rules.margin,
        salt=rollout.salt,
        evidence=evidence(rollout, rules),
    )
    return sealed(told, rollout.last_hash)


def _deployed(rollout: Rollout, decision: Decision, rules: Rules, facts: Facts, now: datetime) -> ModelDeployed:
    policy = facts.policy
    state = "promoted" if rollout.state is State.PROMOTED else DEPLOYED_STATE[decision.verdict]
    ramp = [RampStep(timestamp=step.at, percentage=round(100 * step.weight, 4)) for step in rollout.schedule]
    config = _config(facts, rollout.strategy, 100 * _traffic(rollout))
    return ModelDeployed(
        deployment_id=rollout.rollout_id,
        training_job_id=policy.training_job_id or named_id("no job", policy.name),
        timestamp=now,
        role=rollout.role,
        state=state,
        policy_version=policy.version,
        adapter_digest=policy.digest,
        reason=decision.reason,
        evidence=evidence(rollout, rules),
        model_info=_model_info(policy),
        deployment_config=msgspec.structs.replace(config, ramp_schedule=ramp or None),
        validation_results=validation(rollout.gates),
        metadata=DeploymentMetadata(
            deployed_by=decision.actor,
            approval_status=rollout.approval,
            previous_model=rollout.stable.name if rollout.stable else None,
        ),
    )


def _taken_back(rollout: Rollout, policy: PolicyVersion, facts: Facts, now: datetime) -> ModelDeployed:
    """A policy that ends with a revert: the one that was promoted, or a canary."""
    about = Facts(policy, facts.endpoint, facts.serving_platform)
    told = msgspec.structs.replace(registration(policy, about, now), state="rolled_back", reason=rollout.reason)
    metadata = DeploymentMetadata(deployed_by=rollout.actor, approval_status=rollout.approval)
    return msgspec.structs.replace(
        told, deployment_id=named_id("reverted", rollout.rollout_id, policy.version), metadata=metadata
    )


def _alert(rollout: Rollout, decision: Decision, now: datetime) -> Alert:
    name = rollout.candidate.name
    summary = {
        Verdict.ROLL_BACK: f"{name} was rolled back",
        Verdict.REFUSE: f"{name} was refused by a gate",
        Verdict.HOLD: f"{name} needs a decision",
        Verdict.REVERT: f"the promotion of {rollout.stable.name if rollout.stable else name} was undone",
    }[decision.verdict]
    return Alert(
        alert_id=named_id("alert", rollout.rollout_id, rollout.decisions - 1),
        key=f"rollout:{rollout.rollout_id}:{decision.verdict}",
        severity=SEVERITY[decision.verdict],
        summary=f"{summary}: {decision.reason}",
        source=ITSELF,
        at=now,
        role=rollout.role,
        labels={"policy": name, "rollout_id": rollout.rollout_id},
    )


def _traffic(rollout: Rollout) -> float:
    """Share of new trajectories that meet the candidate after the decision."""
    return 1.0 if rollout.state in (State.PROMOTED, State.REVERTED) else rollout.weight


def _model_info(policy: PolicyVersion) -> ModelInfo:
    return ModelInfo(
        model_id=policy.name,
        base_model=policy.base_model,
        checkpoint_path=policy.uri,
        training_date=policy.created_at,
        training_samples=policy.training_samples or None,
        final_reward=policy.final_reward,
    )


def _config(facts: Facts, strategy: str, percentage: float) -> DeploymentConfig:
    return DeploymentConfig(
        serving_platform=facts.serving_platform,
        endpoint=facts.endpoint,
        model_name=facts.policy.name,
        rollout_strategy=strategy,
        traffic_percentage=round(percentage, 4),
    )
