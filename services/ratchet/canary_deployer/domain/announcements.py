"""The messages that announce a decision: the decision itself, the policy's new state, an alert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ratchet.bus.message import Cause, JsonObject, cause_of
from ratchet.canary_deployer.domain.gating import CHECKS, HELDOUT, SAFETY_SUITE
from ratchet.canary_deployer.domain.rollout import (
    ITSELF,
    NOT_RUN,
    PASSED,
    Decision,
    GateResult,
    Rollout,
    State,
    Verdict,
)
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.summary import e_values, evidence
from ratchet.core.contract import Alert, ModelDeployed, ModelRollout, named_id
from ratchet.core.contract.deployment import (
    DeploymentConfig,
    DeploymentMetadata,
    ModelInfo,
    RampStep,
    RolloutStage,
    ValidationResults,
)
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.evaluation.suites import HELDOUT as HELDOUT_SUITE
from ratchet.core.evaluation.suites.base import SAFETY
from ratchet.core.rules.hash_chain import seal

DEPLOYED_STATE: dict[Verdict, str] = {
    Verdict.START: "canary",
    Verdict.ADVANCE: "canary",
    Verdict.PROMOTE: "canary",
    Verdict.ROLL_BACK: "rolled_back",
    Verdict.REFUSE: "aborted",
    Verdict.ABORT: "aborted",
    Verdict.WITHDRAW: "rolled_back",
    Verdict.SUPERSEDE: "superseded",
    Verdict.REVERT: "promoted",
}
"""State of the policy after a verdict; after a complete promotion it is `promoted`. Other verdicts change no policy."""

UNKNOWN = "unknown"
"""Stands in the entry of a policy whose own entry is gone, beyond its version, name and digest."""

SEVERITY = {
    Verdict.ROLL_BACK: "critical",
    Verdict.SUSPEND: "critical",
    Verdict.WITHDRAW: "warning",
    Verdict.REFUSE: "warning",
    Verdict.HOLD: "warning",
    Verdict.REVERT: "warning",
}
"""Verdicts that alert operators."""
UNDECIDED = frozenset({Verdict.HOLD, Verdict.SUSPEND})
"""Verdicts after which a person has to decide."""
UNDECIDED_STATES = frozenset({State.AWAITING_APPROVAL, State.HELD, State.SUSPENDED})
"""States in which a rollout waits for that."""


@dataclass(frozen=True, slots=True)
class Announcer:
    """Builds the messages of a deployer whose policies are served at one endpoint."""

    endpoint: str
    platform_of: Callable[[str], str] = lambda _: "engine_local"
    """What serves the policies of a role."""

    def announcements(
        self, rollout: Rollout, decision: Decision, rules: Rules, policies: Sequence[PolicyVersion], now: datetime
    ) -> tuple[ModelRollout, *tuple[ModelDeployed | Alert, ...]]:
        """The sealed decision of the rollout that has just moved, and the messages that follow from it.

        `policies`: the candidate; after it those that a revert takes back, namely the policy whose promotion it undoes
        and the canary that it ends.
        """
        candidate, *taken_back = policies
        statistics = rollout.statistics
        announced = ModelRollout(
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
            e_values=e_values(statistics, rollout.under(rules)) if rollout.schedule else None,
            samples={
                "stable": statistics.stable.trajectories,
                "canary": statistics.canary.trajectories,
                "mixed": statistics.stable.moved + statistics.canary.moved,
            },
            margin=rules.margin,
            salt=rollout.salt,
            evidence=evidence(rollout, rules),
        )
        others: list[ModelDeployed | Alert] = []
        if decision.verdict in DEPLOYED_STATE:
            others.append(self._deployed(rollout, decision, rules, candidate, now))
        if rollout.state is State.REVERTED and decision.verdict is Verdict.REVERT:
            others += [self._taken_back(rollout, policy, now) for policy in taken_back]
        if decision.verdict in SEVERITY and (decision.verdict is not Verdict.ROLL_BACK or decision.actor == ITSELF):
            others.append(_alert(rollout, decision, now))
        return (seal(announced, rollout.last_hash), *others)

    def registration(self, policy: PolicyVersion, now: datetime) -> ModelDeployed:
        """A new policy is registered; no gate has checked it yet."""
        return ModelDeployed(
            deployment_id=named_id("registration", policy.role, policy.version),
            training_job_id=_training_job_id(policy),
            timestamp=now,
            role=policy.role,
            state="registered",
            policy_version=policy.version,
            adapter_digest=policy.digest,
            reason=policy.reason,
            model_info=_model_info(policy),
            deployment_config=self._config(policy, "canary", 0.0),
            validation_results=validation(()),
            metadata=DeploymentMetadata(deployed_by=ITSELF, approval_status="automated"),
        )

    def refusal(self, policy: PolicyVersion, reason: str, now: datetime) -> tuple[ModelDeployed, Alert]:
        """A policy is refused at its registration: it has no rollout."""
        alert = Alert(
            alert_id=named_id("alert", policy.role, policy.version, Verdict.REFUSE),
            key=_failed_key(policy.role),
            severity=SEVERITY[Verdict.REFUSE],
            summary=f"{policy.name} was refused at its registration: {reason}",
            source=ITSELF,
            at=now,
            role=policy.role,
            labels={"policy": policy.name},
        )
        return msgspec.structs.replace(self.registration(policy, now), state="aborted", reason=reason), alert

    def superseded(self, policy: PolicyVersion, reason: str, now: datetime) -> ModelDeployed:
        """A candidate whose rollout never began makes room for a newer one."""
        return msgspec.structs.replace(self.registration(policy, now), state="superseded", reason=reason)

    def _taken_back(self, rollout: Rollout, policy: PolicyVersion, now: datetime) -> ModelDeployed:
        return msgspec.structs.replace(
            self.registration(policy, now),
            deployment_id=named_id("reverted", rollout.rollout_id, policy.version),
            state="rolled_back",
            reason=rollout.reason,
            metadata=DeploymentMetadata(deployed_by=rollout.actor, approval_status=rollout.approval),
        )

    def _deployed(
        self, rollout: Rollout, decision: Decision, rules: Rules, policy: PolicyVersion, now: datetime
    ) -> ModelDeployed:
        ramp = [RampStep(timestamp=step.at, percentage=round(100 * step.weight, 4)) for step in rollout.schedule]
        config = self._config(policy, rollout.strategy, 100 * _traffic(rollout))
        return ModelDeployed(
            deployment_id=rollout.rollout_id,
            training_job_id=_training_job_id(policy),
            timestamp=now,
            role=rollout.role,
            state="promoted" if rollout.state is State.PROMOTED else DEPLOYED_STATE[decision.verdict],
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

    def _config(self, policy: PolicyVersion, strategy: str, percentage: float) -> DeploymentConfig:
        return DeploymentConfig(
            serving_platform=self.platform_of(policy.role),
            endpoint=self.endpoint,
            model_name=policy.name,
            rollout_strategy=strategy,
            traffic_percentage=round(percentage, 4),
        )


def registration_cause(policy: PolicyVersion) -> Cause | None:
    """The event of `Announcer.registration` as a cause; None for a policy that no job made."""
    if policy.cause is None:
        return None
    return cause_of(Announcer(endpoint="").registration(policy, policy.created_at), policy.cause)


def validation(gates: Sequence[GateResult]) -> ValidationResults:
    """The gates' results as `model.deployed` has them; a gate that did not run has not passed."""
    results = {result.gate: result for result in gates}
    passed = {name for name, result in results.items() if result.outcome == PASSED}
    heldout: dict[str, Any] = dict(results[HELDOUT].evidence) if HELDOUT in results else {}
    suites: JsonObject = results[SAFETY_SUITE].evidence.get("suites", {}) if SAFETY_SUITE in results else {}
    safety = any(suite["task_type"].startswith(SAFETY) for suite in suites.values())
    compared = {
        "benchmark_passed": "regression" in heldout,
        "safety_checks_passed": safety,
        "performance_regression": "regression" in heldout,
    }
    scores = {name: heldout[name] for name in ("candidate_score", "stable_score", "difference") if name in heldout}
    scores |= {HELDOUT_SUITE: heldout["candidate_score"]} if "candidate_score" in heldout else {}
    scores |= {suite["task_type"]: suite["candidate_score"] for suite in suites.values()}
    return ValidationResults(
        benchmark_passed=HELDOUT in passed,
        safety_checks_passed=safety and SAFETY_SUITE in passed,
        checks={name: results[name].outcome if name in results else NOT_RUN for name in (*CHECKS, *results)},
        performance_regression=bool(heldout.get("regression", False)),
        not_compared=[name for name, was_compared in compared.items() if not was_compared] or None,
        benchmark_scores=scores or None,
    )


def _alert(rollout: Rollout, decision: Decision, now: datetime) -> Alert:
    name = rollout.candidate.name
    summary = {
        Verdict.ROLL_BACK: f"{name} was rolled back",
        Verdict.REFUSE: f"{name} was refused by a gate",
        Verdict.HOLD: f"{name} needs a decision",
        Verdict.SUSPEND: f"{name} is suspended and needs a decision",
        Verdict.WITHDRAW: f"{name} was withdrawn",
        Verdict.REVERT: f"the promotion of {rollout.stable.name if rollout.stable else name} was undone",
    }[decision.verdict]
    return Alert(
        alert_id=named_id("alert", rollout.rollout_id, rollout.decisions - 1),
        key=_decision_key(rollout.role) if decision.verdict in UNDECIDED else _failed_key(rollout.role),
        severity=SEVERITY[decision.verdict],
        summary=f"{summary}: {decision.reason}",
        source=ITSELF,
        at=now,
        role=rollout.role,
        labels={"policy": name, "rollout_id": rollout.rollout_id},
    )


def _decision_key(role: str) -> str:
    """Of the alert that a person has to decide about a role's candidate."""
    return f"rollout:{role}:decision"


def _failed_key(role: str) -> str:
    """Of the alert that a role's candidate was refused, or taken back."""
    return f"rollout:{role}:failed"


def endings(before: State, rollout: Rollout, decision: Decision, now: datetime) -> list[Alert]:
    """The ends of alerts that a decision brings: a person decided, or a candidate passed its gates.

    `before`: the state from which the rollout has moved.
    """
    decided = before in UNDECIDED_STATES and rollout.state not in UNDECIDED_STATES
    passed = decision.verdict is Verdict.START or (rollout.state is State.PROMOTED and before is not State.PROMOTED)
    keys = [_decision_key(rollout.role)] * decided + [_failed_key(rollout.role)] * passed
    return [_over(rollout, key, now) for key in keys]


def _over(rollout: Rollout, key: str, now: datetime) -> Alert:
    return Alert(
        alert_id=named_id("alert", rollout.rollout_id, rollout.decisions - 1, key, "over"),
        key=key,
        severity="info",
        summary=f"{rollout.candidate.name} goes on" if key == _failed_key(rollout.role) else "it was decided",
        source=ITSELF,
        at=now,
        cleared=True,
        role=rollout.role,
    )


def _traffic(rollout: Rollout) -> float:
    """Share of new trajectories that the candidate answers after the decision."""
    return 1.0 if rollout.state in (State.PROMOTED, State.REVERTED) else rollout.weight


def _training_job_id(policy: PolicyVersion) -> str:
    return policy.training_job_id or named_id("no job", policy.name)


def _model_info(policy: PolicyVersion) -> ModelInfo:
    return ModelInfo(
        model_id=policy.name,
        base_model=policy.base_model,
        checkpoint_path=policy.uri,
        training_date=None if policy.uri == UNKNOWN else policy.created_at,
        training_samples=policy.training_samples or None,
        final_reward=policy.final_reward,
    )
