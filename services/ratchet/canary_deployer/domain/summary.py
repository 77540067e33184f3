"""The figures of a rollout: as operators see them, and as decisions, events and metrics quote them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.cohorts import FIRST_CALL, SAFETY
from ratchet.canary_deployer.domain.estimates import complaints_compared
from ratchet.canary_deployer.domain.evidence import COMBINED, SAMPLE_RATIO, Evidence
from ratchet.canary_deployer.domain.rollout import Rollout, State
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import COMPLAINTS, Rules, threshold
from ratchet.canary_deployer.domain.subjects import FEWEST_SUBJECTS
from ratchet.canary_deployer.domain.trajectories import ArmCounts
from ratchet.canary_deployer.domain.verdicts import waiting_for
from ratchet.core.contract.http.rollouts import EvidenceSampleOut, RolloutOut, TrailOut
from ratchet.core.contract.state import PolicyStage, PolicyVersion

TRAJECTORIES = "trajectories"
LARGEST_SHOWN = 1e12
"""Beyond it an e-value says nothing more."""


def summary(
    rollout: Rollout,
    rules: Rules,
    fault: str | None = None,
    late: str | None = None,
    policies: Sequence[PolicyVersion] = (),
) -> RolloutOut:
    """Everything about a rollout but its bookkeeping.

    `fault`: why it cannot go on, where it cannot. `late`: why its outcomes come late, where they do. `policies`: those
    of the role, among which are the candidates that wait.

    `deadline_in_s`: for how long it may go on undecided; None when it does not gather evidence.
    """
    rules = rollout.under(rules)
    running = rollout.state is State.RUNNING
    undecided = running or rollout.state is State.SUSPENDED
    members = {
        "rollout_id": rollout.rollout_id,
        "role": rollout.role,
        "state": str(rollout.state),
        "strategy": rollout.strategy,
        "parked": rollout.parked,
        "candidate": rollout.candidate,
        "stable": rollout.stable,
        "queue": queue(rollout, policies),
        "stage": rollout.stage,
        "weight": rollout.weight,
        "stage_since": rollout.stage_since,
        "reason": rollout.reason,
        "actor": rollout.actor,
        "approval": rollout.approval,
        "created_at": rollout.created_at,
        "finished_at": rollout.finished_at,
        "noticed": list(rollout.noticed),
        "decisions": rollout.decisions,
        "last_hash": rollout.last_hash,
        "forecast": rollout.forecast.figures() if rollout.forecast else None,
        "horizon": rollout.horizon,
        "cost": rollout.cost,
        "complaints": complaints_compared(rules),
        "waiting_for": waiting_for(rollout, rules) if running or rollout.state is State.SOAKING else [],
        "stage_age_s": round(rollout.stage_age_s, 1),
        "deadline_in_s": round(max(0.0, rules.deadline_s - rollout.age_s), 1) if undecided else None,
        "gates": [msgspec.to_builtins(result) for result in rollout.gates],
        **comparison(rollout.statistics, rules),
        "pending": rollout.statistics.pending,
        "subjects": subjects(rollout, rules),
        "e_values": e_values(rollout.statistics, rules),
        "margin": rules.margin,
        "fault": fault,
        "late": late,
    }
    return msgspec.convert(members, RolloutOut)


def queue(rollout: Rollout, policies: Sequence[PolicyVersion]) -> list[str]:
    """The candidates that wait for their turn, newest first; the rollout's own is registered, too, until it begins."""
    waiting = (policy for policy in policies if policy.stage == PolicyStage.REGISTERED)
    newest_first = sorted(waiting, key=lambda policy: policy.version, reverse=True)
    return [policy.name for policy in newest_first if policy.version != rollout.candidate.version]


def evidence(rollout: Rollout, rules: Rules) -> JsonObject:
    """The figures behind a decision."""
    rules = rollout.under(rules)
    figures: JsonObject = {"state": str(rollout.state), "strategy": rollout.strategy, "approval": rollout.approval}
    if rollout.gates:
        figures["gates"] = [msgspec.to_builtins(result) for result in rollout.gates]
    if rollout.forecast is not None:
        figures["forecast"] = rollout.forecast.figures()
    if rollout.horizon is not None:
        figures["horizon"] = msgspec.to_builtins(rollout.horizon)
    if rollout.cost is not None:
        figures["cost"] = msgspec.to_builtins(rollout.cost)
    if rollout.schedule:
        figures |= comparison(rollout.statistics, rules)
    return figures


def comparison(statistics: Statistics, rules: Rules) -> JsonObject:
    """Both arms, how they differ by metric, and the values that each test has to reach.

    `mixed` trajectories were moved; tests count them with the value that is worst for a claim. `run` is a chance: its
    test is reached from above. A `difference` is how much more harm the canary does, stage by stage, and its `margin`
    what still counts as not worse; of cost both are relative to stable's mean. `shares` are those of
    `budget.evidence`, by metric.
    """
    shown, budget = statistics.evidence, rules.budget
    return {
        "arms": {
            "stable": _arm(statistics.stable),
            "canary": _arm(statistics.canary),
            "mixed": statistics.stable.moved + statistics.canary.moved,
        },
        "differences": {
            name: {"difference": round(value, 4), "margin": rules.margin_of(name), **_interval(shown, name)}
            for name, value in shown.differences.items()
        },
        "coverage": {arm: round(known, 4) for arm, known in shown.coverage.items()},
        "run": shown.run,
        "run_of_trajectories": shown.run_of_trajectories,
        "thresholds": {
            "rollback": threshold(budget.evidence),
            COMPLAINTS: threshold(budget.complaints),
            FIRST_CALL: threshold(budget.first_call),
            SAFETY: threshold(budget.safety),
            SAMPLE_RATIO: threshold(rules.ratio_error),
            "promotion": rules.promotion_threshold,
            "run": budget.run,
            "coverage": rules.min_coverage,
        },
        "budget": dataclasses.asdict(budget),
        "shares": {name: round(share, 4) for name, share in rules.shares.items()},
    }


def subjects(rollout: Rollout, rules: Rules) -> JsonObject:
    """How many subjects the evidence is about, and what is known of them from before."""
    before, seen = rollout.subjects_before, rollout.statistics.subjects
    few = f"{seen} subjects seen: fewer than {FEWEST_SUBJECTS} say nothing of others, and promote nothing; a margin of"
    return {
        "seen": seen,
        "before": before.subjects,
        "starts_before": before.starts,
        "split": len(before.split),
        "note": f"{few} {rules.margin:g} takes hundreds" if rollout.schedule and seen < FEWEST_SUBJECTS else None,
    }


def _interval(shown: Evidence, metric: str) -> JsonObject:
    whole = shown.limits.get(metric)
    if whole is None:
        return {}
    return {
        "low": round(whole.low, 4),
        "high": round(whole.high, 4),
        "by_share": [
            msgspec.structs.asdict(share)
            | {name: round(getattr(share, name), 4) for name in ("difference", "low", "high")}
            for share in shown.by_share.get(metric, ())
        ],
    }


def e_values(statistics: Statistics, rules: Rules) -> dict[str, dict[str, float]]:
    """By family, then by metric, with the combined value that decides; `tests` are those that belong to no metric.

    `rollback`, `promotion` and the tests that roll back count subjects; `suspension` counts trajectories, and so does
    `sample_ratio`. Four digits, and never above LARGEST_SHOWN.
    """
    shown = statistics.evidence
    largest, promotion = shown.rollback, shown.promotion
    metrics = {name: promotion.get(name, 1.0) for name in rules.promotion_metrics}
    singly = [shown.promotion_by_trajectory.get(name, 1.0) for name in rules.promotion_metrics]
    families = {
        "rollback": {name: largest.get(name, 1.0) for name in (*rules.metrics, COMBINED)},
        "promotion": metrics | {COMBINED: min(metrics.values()), TRAJECTORIES: min(singly)},
        "suspension": {name: shown.suspension.get(name, 1.0) for name in (COMBINED, COMPLAINTS, FIRST_CALL, SAFETY)},
        "tests": {name: largest.get(name, 1.0) for name in (COMPLAINTS, FIRST_CALL, SAFETY)}
        | {SAMPLE_RATIO: shown.suspension.get(SAMPLE_RATIO, 1.0)},
    }
    return {
        family: {name: float(f"{min(value, LARGEST_SHOWN):.4g}") for name, value in values.items()}
        for family, values in families.items()
    }


def traced(rollout: Rollout, now: datetime, rules: Rules) -> Rollout:
    """The rollout with its present e-values in its trail."""
    statistics = rollout.statistics
    trail = statistics.trail.sampled(now, e_values(statistics, rollout.under(rules)))
    if trail is statistics.trail:
        return rollout
    return msgspec.structs.replace(rollout, statistics=msgspec.structs.replace(statistics, trail=trail))


def trail_of(rollout: Rollout) -> TrailOut:
    """The trail as operators see it."""
    samples = [EvidenceSampleOut(at=at, e_values=values) for at, values in rollout.statistics.trail.samples()]
    return TrailOut(rollout_id=rollout.rollout_id, role=rollout.role, samples=samples)


def ratio(count: int, of: int, none: str) -> float | str:
    """`count / of`, or `none` in words when there was nothing to count: 0 of 0 is not 0."""
    return round(count / of, 4) if of else none


def _arm(counts: ArmCounts) -> JsonObject:
    mean = counts.reward_mean
    return {
        "started": counts.started,
        "unannounced": counts.unannounced,
        "trajectories": counts.trajectories,
        "failures": counts.failures,
        "failure_rate": ratio(counts.failures, counts.trajectories, "no trajectories"),
        "missing": counts.missing,
        "unscored": counts.unscored,
        "reward_mean": round(mean, 4) if mean is not None else "no rewards",
        "calls": counts.calls,
        "error_rate": ratio(counts.errors, counts.calls, "no calls"),
        "hung_calls": counts.hung,
        "engine_faults": counts.faulted,
        "bundle_applied": round(counts.applied, 4) if counts.applied is not None else "no calls",
        "negative_feedback": ratio(counts.complaints, counts.rated, "no feedback"),
        "complaints": counts.complaints,
        "safety_violations": counts.violations,
        "cost_usd": round(counts.cost_mean, 8) if counts.cost_mean is not None else "no prices",
        "unpriced": counts.unpriced,
    }
