"""A rollout as operators see it."""

from __future__ import annotations

import dataclasses

import msgspec

from ratchet.canary_deployer.domain.cohorts import FIRST_CALL, SAFETY
from ratchet.canary_deployer.domain.evidence import COMBINED, SAMPLE_RATIO
from ratchet.canary_deployer.domain.rollout import (
    Rollout,
    State,
)
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Rules, threshold
from ratchet.canary_deployer.domain.trajectories import ArmCounts
from ratchet.canary_deployer.domain.verdicts import waiting_for
from ratchet.contract import JsonObject
from ratchet.contract.http.rollouts import RolloutOut


def summary(rollout: Rollout, rules: Rules, fault: str | None = None) -> RolloutOut:
    """Everything about a rollout but its bookkeeping. `fault`: why it cannot go on, where it cannot."""
    shown = {
        "rollout_id": rollout.rollout_id,
        "role": rollout.role,
        "state": str(rollout.state),
        "strategy": rollout.strategy,
        "parked": rollout.parked,
        "forecast": rollout.forecast.shown() if rollout.forecast else None,
        "horizon": msgspec.to_builtins(rollout.horizon),
        "candidate": rollout.candidate,
        "stable": rollout.stable,
        "stage": rollout.stage,
        "weight": rollout.weight,
        "stage_since": rollout.stage_since,
        "waiting_for": waiting_for(rollout, rules) if rollout.state in (State.RUNNING, State.SOAKING) else [],
        "stage_age_s": round(rollout.stage_age_s, 1),
        "deadline_in_s": _deadline_in_s(rollout, rules),
        "reason": rollout.reason,
        "actor": rollout.actor,
        "approval": rollout.approval,
        "created_at": rollout.created_at,
        "finished_at": rollout.finished_at,
        "gates": [msgspec.to_builtins(result) for result in rollout.gates],
        **statistics(rollout.statistics, rules),
        "pending": rollout.statistics.pending,
        "noticed": list(rollout.noticed),
        "e_values": e_values(rollout.statistics, rules),
        "margin": rules.margin,
        "decisions": rollout.decisions,
        "last_hash": rollout.last_hash,
        "fault": fault,
    }
    return msgspec.convert(shown, RolloutOut)


def _deadline_in_s(rollout: Rollout, rules: Rules) -> float | None:
    """For how long the rollout may go on undecided; None when it does not gather evidence."""
    if rollout.state is not State.RUNNING:
        return None
    return round(max(0.0, rules.deadline_s - rollout.age_s), 1)


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
        shown |= statistics(rollout.statistics, rules)
    return shown


def statistics(watch: Statistics, rules: Rules) -> JsonObject:
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


def e_values(watch: Statistics, rules: Rules) -> dict[str, dict[str, float]]:
    """By family, then by metric, with the combined value that decides; `tests` are those that are no metric's."""
    largest, promotion = watch.evidence.rollback, watch.evidence.promotion
    rollback = {name: largest.get(name, 1.0) for name in (*rules.metrics, COMBINED)}
    others = {name: largest.get(name, 1.0) for name in (FIRST_CALL, SAFETY, SAMPLE_RATIO)}
    shown = {name: promotion.get(name, 1.0) for name in rules.promotion_metrics}
    families = {"rollback": rollback, "promotion": shown | {COMBINED: min(shown.values())}, "tests": others}
    return {family: {name: _shown(value) for name, value in values.items()} for family, values in families.items()}


def arms(watch: Statistics) -> JsonObject:
    """Both arms in words and numbers. `mixed` ones were moved; tests count them with what is worst for a claim."""
    mixed = watch.stable.moved + watch.canary.moved
    return {"stable": _arm(watch.stable), "canary": _arm(watch.canary), "mixed": mixed}


def differences(watch: Statistics, rules: Rules) -> JsonObject:
    """By metric: how much more harm the canary does, stage by stage, and what would still count as not worse."""
    return {
        name: {"difference": round(value, 4), "margin": rules.margin_of(name)}
        for name, value in watch.evidence.differences.items()
    }


def _arm(counts: ArmCounts) -> JsonObject:
    mean = counts.reward_mean
    return {
        "started": counts.started,
        "trajectories": counts.trajectories,
        "failures": counts.failures,
        "failure_rate": share(counts.failures, counts.trajectories, "no trajectories"),
        "missing": counts.missing,
        "untold": counts.unscored,
        "reward_mean": round(mean, 4) if mean is not None else "no rewards",
        "calls": counts.calls,
        "error_rate": share(counts.errors, counts.calls, "no calls"),
        "hung_calls": counts.hung,
        "negative_feedback": share(counts.negative, counts.rated, "no feedback"),
        "safety_violations": counts.violations,
    }


def share(count: int, of: int, none: str) -> float | str:
    """`count / of`, or `none` in words when there was nothing to count: 0 of 0 is not 0."""
    return round(count / of, 4) if of else none


def _shown(value: float) -> float:
    """Four digits; beyond LARGEST_SHOWN an e-value says nothing more."""
    return float(f"{min(value, LARGEST_SHOWN):.4g}")


LARGEST_SHOWN = 1e12
