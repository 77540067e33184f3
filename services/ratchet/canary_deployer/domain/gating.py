"""What the gates' results mean for a rollout."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.canary_deployer.domain.announcements import HELDOUT
from ratchet.canary_deployer.domain.forecast import told, too_long
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, WAIVED, GateResult, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.strategies import DEFAULT, STRATEGIES, chosen, immediate
from ratchet.canary_deployer.domain.verdicts import ITSELF, Decision
from ratchet.messages.base import JsonObject

ALWAYS = ("probe", "warmup")
"""Gates that nobody can waive: a policy that does not load or answers with noise cannot serve."""


def due(rollout: Rollout, names: Sequence[str]) -> list[str]:
    """Gates of `names` that must still be passed. A first policy has nothing to be compared with."""
    done = {result.gate for result in rollout.gates}
    asked = names if rollout.stable is not None else [name for name in names if name in ALWAYS]
    return [name for name in asked if name not in done]


def waived(names: Sequence[str], known: JsonObject | None, actor: str, reason: str) -> tuple[GateResult, ...]:
    """Results for an override: each gate that can be waived, with the evidence it had found before."""
    before = known or {}
    return tuple(
        GateResult(name, WAIVED, f"waived by {actor}: {reason}", before.get(name, {}).get("evidence", {}))
        for name in names
        if name not in ALWAYS
    )


def failed(rollout: Rollout) -> Decision | None:
    """The refusal that a failed gate asks for."""
    for result in rollout.gates:
        if result.outcome == FAILED:
            return Decision(Verdict.REFUSE, f"gate {result.gate}: {result.reason}", ITSELF)
    return None


def concluded(rollout: Rollout, setting: str, rules: Rules, approved: Decision | None = None) -> tuple[Decision, str]:
    """The decision when every gate has spoken, and the strategy that goes with it: the one asked for, or the setting's.

    `approved` is the operator's act that stands in for a gate which could not decide.
    """
    refusal = failed(rollout)
    if refusal is not None:
        return refusal, rollout.strategy
    open_questions = [f"{r.gate}: {r.reason}" for r in rollout.gates if r.outcome == NEEDS_APPROVAL]
    if open_questions and approved is None:
        return Decision(Verdict.HOLD, f"needs approval: {'; '.join(open_questions)}", ITSELF), rollout.strategy
    actor, approval = (approved.actor, approved.approval) if approved else (ITSELF, None)
    if rollout.stable is None:
        return Decision(Verdict.PROMOTE, "first policy of the role", actor, approval), immediate.NAME
    strategy = chosen(rollout.asked_strategy or setting, improvement(rollout))
    if strategy is None and approved is None and not rollout.override:
        return Decision(Verdict.REFUSE, "held-out improvement is negative", ITSELF), rollout.strategy
    reason = approved.reason if approved else "every gate passed"
    if rollout.override:
        reason, actor = rollout.reason, rollout.actor
    return _started(strategy or DEFAULT, Decision(Verdict.START, reason, actor, approval), rules)


def in_time(rollout: Rollout, decision: Decision, rules: Rules, approved: Decision | None) -> Decision:
    """The decision, or a question to a person where a start without one would take too long."""
    asked = approved is not None or rollout.override
    if decision.verdict is not Verdict.START or asked or rollout.forecast is None:
        return decision
    if not too_long(rollout.forecast, rules):
        return decision
    return Decision(Verdict.HOLD, f"needs approval: {told(rollout.forecast, rules)}", ITSELF)


def improvement(rollout: Rollout) -> float | None:
    """Held-out difference, candidate minus stable, if it was measured."""
    for result in rollout.gates:
        if result.gate == HELDOUT and isinstance(result.evidence.get("difference"), int | float):
            return float(result.evidence["difference"])
    return None


def _started(strategy: str, start: Decision, rules: Rules) -> tuple[Decision, str]:
    """`immediate` promotes at once. Any other is watched: without a hold-back, stage by stage."""
    if strategy != immediate.NAME and STRATEGIES[strategy].enters(rules.soaks) is State.PROMOTED:
        return start, DEFAULT
    if STRATEGIES[strategy].enters(rules.soaks) is not State.PROMOTED:
        return start, strategy
    return Decision(Verdict.PROMOTE, f"{start.reason}; strategy {strategy}", start.actor, start.approval), strategy
