"""What the deployer counts. The first six names, labels and meanings are known to operators."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge

from ratchet.canary_deployer.domain.gating import HELDOUT, SAFETY_SUITE
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Rollout, State
from ratchet.canary_deployer.domain.trajectories import ArmCounts
from ratchet.core.contract import Message, ModelDeployed, ModelRollout
from ratchet.core.evaluation.suites import HELDOUT as HELDOUT_SUITE

DEPLOYMENTS = Counter("agent_rl_model_deployments_total", "Changes of a policy's state.", ["status"])
TRAFFIC = Gauge("agent_rl_model_traffic_percentage", "Share of new trajectories, 0..100.", ["model_version"])
REWARD_MEAN = Gauge("agent_rl_model_reward_mean", "Mean reward during the rollout.", ["model_version"])
COST_MEAN = Gauge("agent_rl_model_cost_usd", "Mean cost of a trajectory during the rollout.", ["model_version"])
ERROR_RATE = Gauge("agent_rl_model_error_rate", "Share of calls that ended in an error.", ["model_version"])
ERRORS = Counter("agent_rl_model_errors_total", "Calls that ended in an error.", ["model_version"])
ENGINE_FAULTS = Gauge(
    "ratchet_rollout_engine_faults",
    "Trajectories of the running rollout of which an engine failed a call: no policy's failure.",
    ["role", "arm"],
)
BENCHMARK = Gauge("agent_rl_model_benchmark_score", "Mean held-out score, 0..1.", ["model_version", "task_type"])
COMPLAINTS = Gauge(
    "agent_rl_model_complaint_rate", "Share of rated trajectories whose user complained.", ["model_version"]
)
GATES = Counter("ratchet_gate_results_total", "Gates that ran for a candidate.", ["role", "gate", "outcome"])
DECISIONS = Counter(
    "ratchet_rollout_decisions_total",
    "Decisions, by whether the deployer took them, or a request did.",
    ["role", "verdict", "actor"],
)
DECIDED = Gauge(
    "ratchet_rollout_decided_timestamp_seconds", "When a verdict was given last.", ["role", "verdict", "actor"]
)
STAGE = Gauge("ratchet_rollout_stage", "Stage of the running rollout, from 1; 0 without traffic.", ["role"])
DIFFERENCE = Gauge(
    "ratchet_rollout_difference",
    "How much more harm the canary of the running rollout, or of the last, does than stable: the mean, and the bounds"
    " that hold at every moment at once.",
    ["role", "measure", "bound"],
)
E_VALUE = Gauge("ratchet_rollout_e_value", "Combined e-value of the running rollout.", ["role", "test"])
SUSPENDED = Gauge("ratchet_rollout_suspended", "1 while the canary is suspended and a person has to decide.", ["role"])
LEASE = Gauge("ratchet_rollout_lease", "Lease number of the running canary.", ["role"])
BEHIND = Gauge(
    "ratchet_rollout_outcomes_behind_seconds",
    "For how long the oldest report without a reward has waited, while a rollout has traffic.",
    ["role"],
)
LEADING = Gauge("ratchet_deployer_leading", "1 while this deployer leads, 0 while it is a standby.")
STANDING = (
    *(TRAFFIC, REWARD_MEAN, COST_MEAN, ERROR_RATE, ENGINE_FAULTS, BENCHMARK, COMPLAINTS),
    *(STAGE, DIFFERENCE, E_VALUE, SUSPENDED, LEASE, BEHIND),
)
"""Shown by the one that leads alone."""

# From 0 on, so that the first event already shows as an increase.
for _state in ("registered", "canary", "promoted", "rolled_back", "aborted", "superseded"):
    DEPLOYMENTS.labels(_state)


def stop_showing() -> None:
    """Show no rollout: the one that leads does."""
    for gauge in STANDING:
        gauge.clear()


def show_rollout(rollout: Rollout, e_values: dict[str, dict[str, float]]) -> None:
    """Set the gauges of both policies."""
    done = rollout.state is State.PROMOTED
    weight = 1.0 if done else rollout.weight
    TRAFFIC.labels(rollout.candidate.name).set(100 * weight)
    _show_arm(rollout.candidate.name, rollout.statistics.canary)
    if rollout.stable is not None:
        TRAFFIC.labels(rollout.stable.name).set(100 * (1 - weight))
        _show_arm(rollout.stable.name, rollout.statistics.stable)
    for arm, counts in (("stable", rollout.statistics.stable), ("canary", rollout.statistics.canary)):
        ENGINE_FAULTS.labels(rollout.role, arm).set(counts.faulted)
    _show_differences(rollout)
    SUSPENDED.labels(rollout.role).set(rollout.state is State.SUSPENDED)
    for test in ("rollback", "promotion", "suspension"):
        E_VALUE.labels(rollout.role, test).set(e_values[test]["combined"])
    for test, value in e_values["tests"].items():
        E_VALUE.labels(rollout.role, test).set(value)


def count_errors(rollout: Rollout, before: Rollout) -> None:
    """Add the errors since `before`."""
    pairs = ((rollout.candidate, "canary"), (rollout.stable, "stable"))
    for policy, arm in pairs:
        now: ArmCounts = getattr(rollout.statistics, arm)
        then: ArmCounts = getattr(before.statistics, arm)
        if policy is not None and now.errors > then.errors:
            ERRORS.labels(policy.name).inc(now.errors - then.errors)


def count_deployments(messages: Iterable[Message]) -> None:
    """Count the changes of policies, and the decisions, that were published."""
    for message in messages:
        if isinstance(message, ModelDeployed) and message.state is not None:
            DEPLOYMENTS.labels(message.state).inc()
        if isinstance(message, ModelRollout):
            actor = "deployer" if message.actor == ITSELF else "request"
            DECISIONS.labels(message.role, message.verdict, actor).inc()
            DECIDED.labels(message.role, message.verdict, actor).set(message.timestamp.timestamp())


def show_gates(rollout: Rollout) -> None:
    """Set the held-out scores of both policies, and those of safety suites by task type."""
    for result in rollout.gates:
        for suite in result.evidence.get("suites", {}).values() if result.gate == SAFETY_SUITE else ():
            BENCHMARK.labels(rollout.candidate.name, suite["task_type"]).set(suite["candidate_score"])
        if result.gate != HELDOUT:
            continue
        for policy, who in ((rollout.candidate, "candidate"), (rollout.stable, "stable")):
            score = result.evidence.get(f"{who}_score")
            if policy is not None and score is not None:
                BENCHMARK.labels(policy.name, HELDOUT_SUITE).set(score)


def _show_differences(rollout: Rollout) -> None:
    """Of one rollout, until the role's next one: one that is decided within a scrape shows what decided it too."""
    role, shown = rollout.role, rollout.statistics.evidence
    running = rollout.state in WITH_TRAFFIC
    STAGE.labels(role).set(rollout.stage + 1 if running else 0)
    DIFFERENCE.remove_by_labels({"role": role})
    for measure, value in shown.differences.items():
        limits = shown.limits.get(measure)
        known = {"mean": value} | ({"low": limits.low, "high": limits.high} if limits else {})
        for bound, figure in known.items():
            DIFFERENCE.labels(role, measure, bound).set(figure)


def _show_arm(name: str, counts: ArmCounts) -> None:
    """Gauges without a measurement stay unset; errors count from 0."""
    ERRORS.labels(name)
    if counts.reward_mean is not None:
        REWARD_MEAN.labels(name).set(counts.reward_mean)
    if counts.cost_mean is not None:
        COST_MEAN.labels(name).set(counts.cost_mean)
    if counts.rated:
        COMPLAINTS.labels(name).set(counts.complaints / counts.rated)
    if counts.error_rate is not None:
        ERROR_RATE.labels(name).set(counts.error_rate)
