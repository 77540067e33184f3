"""What the world is told about a decision: the decision itself, the policy's new state, an alert."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ratchet.bus.message import Cause
from ratchet.canary_deployer.domain.audit import sealed
from ratchet.canary_deployer.domain.budget import threshold
from ratchet.canary_deployer.domain.cohorts import FIRST_CALL, SAFETY
from ratchet.canary_deployer.domain.evidence import COMBINED, SAMPLE_RATIO
from ratchet.canary_deployer.domain.replay import REPLAY
from ratchet.canary_deployer.domain.rollout import NOT_RUN, PASSED, GateResult, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.trajectories import ArmCounts
from ratchet.canary_deployer.domain.verdicts import ITSELF, Decision
from ratchet.canary_deployer.domain.watch import Watch
from ratchet.contract import Alert, JsonObject, ModelDeployed, ModelRollout, named_id
from ratchet.contract.deployment import (
    DeploymentConfig,
    DeploymentMetadata,
    ModelInfo,
    RampStep,
    RolloutStage,
    ValidationResults,
)
from ratchet.contract.state import PolicyVersion

HELDOUT = "heldout_tasks"
SAFETY_SUITE = "safety_suite"
"""The gate behind `safety_checks_passed`. None ships: without one the event says false, and `checks` says why."""
CHECKS = ("probe", "warmup", HELDOUT, "approval", REPLAY, SAFETY_SUITE)
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

UNKNOWN = "unknown"
"""What is said of a policy whose entry is gone, beyond its version, name and digest."""
LARGEST_SHOWN = 1e12

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
    if rollout.horizon is not None:
        shown["horizon"] = msgspec.to_builtins(rollout.horizon)
    if rollout.schedule:
        shown |= statistics(rollout.watch, rules)
    return shown


def statistics(watch: Watch, rules: Rules) -> JsonObject:
    """What the trajectories show, and what it is held against."""
    return {
        "arms": arms(watch),
        "differences": differences(watch, rules),
        "coverage": {arm: round(share, 4) for arm, share in watch.evidence.coverage.items()},
        "run": watch.evidence.run,
        "thresholds": thresholds(rules),
        "budget": dataclasses.asdict(rules.budget),
    }


def thresholds(rules: Rules) -> JsonObject:
    """What each test has to reach; `run` is a chance, and reached from above."""
    budget = rules.budget
    return {
        "rollback": threshold(budget.evidence),
        FIRST_CALL: threshold(budget.first_call),
        SAFETY: threshold(budget.safety),
        SAMPLE_RATIO: threshold(rules.ratio_error),
        "promotion": rules.promotion_threshold,
        "run": budget.run,
        "coverage": rules.min_coverage,
    }


def e_values(watch: Watch, rules: Rules) -> dict[str, dict[str, float]]:
    """By family, then by metric, with the combined value that decides; `tests` are those that are no metric's."""
    largest, promotion = watch.evidence.rollback, watch.evidence.promotion
    rollback = {name: largest.get(name, 1.0) for name in (*rules.metrics, COMBINED)}
    others = {name: largest.get(name, 1.0) for name in (FIRST_CALL, SAFETY, SAMPLE_RATIO)}
    shown = {name: promotion.get(name, 1.0) for name in rules.promotion_metrics}
    families = {"rollback": rollback, "promotion": shown | {COMBINED: min(shown.values())}, "tests": others}
    return {family: {name: _shown(value) for name, value in values.items()} for family, values in families.items()}


def arms(watch: Watch) -> JsonObject:
    """Both arms in words and numbers. `mixed` ones were moved; tests count them with what is worst for a claim."""
    mixed = watch.stable.moved + watch.canary.moved
    return {"stable": _arm(watch.stable), "canary": _arm(watch.canary), "mixed": mixed}


def differences(watch: Watch, rules: Rules) -> JsonObject:
    """By metric: how much more harm the canary does, stage by stage, and what would still count as not worse."""
    return {
        name: {"difference": round(value, 4), "margin": rules.margin_of(name)}
        for name, value in watch.evidence.differences.items()
    }


def share(count: int, of: int, none: str) -> float | str:
    """`count / of`, or `none` in words when there was nothing to count: 0 of 0 is not 0."""
    return round(count / of, 4) if of else none


def _arm(counts: ArmCounts) -> JsonObject:
    mean = counts.reward_mean
    return {
        "started": counts.started,
        "trajectories": counts.trajectories,
        "failures": counts.failures,
        "failure_rate": share(counts.failures, counts.trajectories, "no trajectories"),
        "missing": counts.missing,
        "untold": counts.untold,
        "reward_mean": round(mean, 4) if mean is not None else "no rewards",
        "calls": counts.calls,
        "error_rate": share(counts.errors, counts.calls, "no calls"),
        "hung_calls": counts.hung,
        "negative_feedback": share(counts.negative, counts.rated, "no feedback"),
        "safety_violations": counts.violations,
    }


def _decision(rollout: Rollout, decision: Decision, rules: Rules, now: datetime) -> ModelRollout:
    watch = rollout.watch
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
        e_values=e_values(watch, rules) if with_traffic else None,
        samples={
            "stable": watch.stable.trajectories,
            "canary": watch.canary.trajectories,
            "mixed": watch.stable.moved + watch.canary.moved,
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
        training_date=None if policy.uri == UNKNOWN else policy.created_at,
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


def _shown(value: float) -> float:
    """Four digits; beyond LARGEST_SHOWN an e-value says nothing more."""
    return float(f"{min(value, LARGEST_SHOWN):.4g}")
