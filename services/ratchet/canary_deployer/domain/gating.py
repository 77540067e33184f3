"""What the gates' results mean for a rollout: whether it starts, and by which strategy its policy gets traffic.

- `canary`: stage by stage, promoted on evidence. The safe one, and the default.
- `blue_green`: all new trajectories at once but the hold-back, watched for one soak period. The rollback tests compare
  with the hold-back (5 %); the previous policy stays resident, so that a rollback is one write. When the soak passes
  without an alarm, the hold-back goes too.
- `immediate`: all new trajectories at once, unwatched; the previous policy stays resident for a revert. For the first
  policy of a role, which has nothing to be compared with, and for an operator who asks for it and overrides.

What follows (tests, trip wires, rollback) is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.canary_deployer.domain.estimates import DAY_S, forecast_at_rate, takes_too_long
from ratchet.canary_deployer.domain.rollout import (
    FAILED,
    ITSELF,
    NEEDS_APPROVAL,
    NOT_RUN,
    PASSED,
    WAIVED,
    Decision,
    GateResult,
    Rollout,
    State,
    Verdict,
)
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.core.contract.policy_manifest import ADAPTER, BUNDLE, MODEL
from ratchet.core.contract.state import PolicyVersion

RENDER, PROBE, WARMUP, TAKES_TOOLS, HELDOUT, SAFETY_SUITE, SHADOW_TRAFFIC, OFF_POLICY, APPROVAL, REPLAY = (
    "render",
    "probe",
    "warmup",
    "takes_tools",
    "heldout_tasks",
    "safety_suite",
    "shadow_traffic",
    "off_policy",
    "approval",
    "shadow_replay",
)
"""Names of the gates that ship."""
CHECKS = (RENDER, PROBE, WARMUP, TAKES_TOOLS, HELDOUT, SAFETY_SUITE, SHADOW_TRAFFIC, OFF_POLICY, APPROVAL, REPLAY)
"""The checks that every event names, whether they ran or not."""


@dataclass(frozen=True, slots=True)
class KindGates:
    """The gates that ship, for one kind of policy. Those of other packages are for every kind."""

    alone: tuple[str, ...]
    """Of a first policy: those that need no other one to compare with, or can do without."""
    compared: tuple[str, ...] = (HELDOUT, SHADOW_TRAFFIC, APPROVAL, REPLAY)
    """Of every other one, besides."""
    always: tuple[str, ...] = (PROBE, WARMUP)
    """No operator can waive them: a policy that does not load or answers with noise cannot serve."""


_WEIGHTS = KindGates(alone=(PROBE, WARMUP, TAKES_TOOLS, SAFETY_SUITE))
GATES_OF: Mapping[str, KindGates] = {
    ADAPTER: _WEIGHTS,
    MODEL: _WEIGHTS,
    BUNDLE: KindGates(alone=(RENDER, PROBE, WARMUP, TAKES_TOOLS, SAFETY_SUITE, OFF_POLICY)),
}
"""By kind of policy. A new kind is a line here."""


def gates_for(kind: str, names: Sequence[str], *, first: bool) -> list[str]:
    """Those of `names` that a policy of this kind has to pass."""
    table = GATES_OF.get(kind, _WEIGHTS)
    own = table.alone if first else (*table.alone, *table.compared)
    return [name for name in names if name in own or (name not in CHECKS and not first)]


CANARY, BLUE_GREEN, IMMEDIATE = "canary", "blue_green", "immediate"
STRATEGIES = {CANARY: State.RUNNING, BLUE_GREEN: State.SOAKING, IMMEDIATE: State.PROMOTED}
"""By name: where a rollout goes from its gates. A new one is a line here, and a value of `rollout_strategy` in the
contract."""
AUTO = "auto"
"""Setting that leaves the choice to `chosen`."""
MODERATE = 0.05
"""Held-out improvement from which a bolder strategy is chosen."""


def due_gates(rollout: Rollout, kind: str, names: Sequence[str], rules: Rules) -> list[str]:
    """Gates of `names` that must still be passed. A first policy has nothing to be compared with.

    Shadow replay comes last, and only where little traffic is all that keeps the candidate from starting.
    """
    done = {result.gate for result in rollout.gates}
    missing = [name for name in gates_for(kind, names, first=rollout.stable is None) if name not in done]
    others = [name for name in missing if name != REPLAY]
    if others or not missing:
        return others
    passed = all(result.outcome in (PASSED, NOT_RUN) for result in rollout.gates)
    return missing if passed and not rollout.override and takes_too_long(rollout.forecast, rules) else []


def waived_results(policy: PolicyVersion, names: Sequence[str], actor: str, reason: str) -> tuple[GateResult, ...]:
    """Results for an override: each gate that can be waived, with the evidence that it had gathered before."""
    before, always = policy.gate or {}, GATES_OF.get(policy.kind, _WEIGHTS).always
    return tuple(
        GateResult(name, WAIVED, f"waived by {actor}: {reason}", before.get(name, {}).get("evidence", {}))
        for name in gates_for(policy.kind, names, first=False)
        if name not in (*always, REPLAY)
    )


def refusal(rollout: Rollout) -> Decision | None:
    """The refusal that a failed gate asks for. Shadow replay refuses nothing."""
    for result in rollout.gates:
        if result.outcome == FAILED and result.gate != REPLAY:
            return Decision(Verdict.REFUSE, f"gate {result.gate}: {result.reason}", ITSELF)
    return None


def gates_decision(
    rollout: Rollout, setting: str, rules: Rules, approved: Decision | None = None
) -> tuple[Decision, str]:
    """The decision after every gate, and the strategy that goes with it: the operator's choice, or the setting's.

    `approved` is the operator's approval where a gate could not decide. A strategy that watches its canary needs a
    hold-back: without one it goes stage by stage. So does, by the setting, a candidate that nothing was compared with:
    a soak asks no evidence.
    """
    refused = refusal(rollout)
    if refused is not None:
        return refused, rollout.strategy
    open_questions = [
        result.reason if result.gate == APPROVAL else f"{result.gate}: {result.reason}"
        for result in rollout.gates
        if result.outcome == NEEDS_APPROVAL
    ]
    if open_questions and approved is None:
        return Decision(Verdict.HOLD, f"needs approval: {'; '.join(open_questions)}", ITSELF), rollout.strategy
    actor, approval = (approved.actor, approved.approval) if approved else (ITSELF, None)
    if rollout.stable is None:
        return Decision(Verdict.PROMOTE, "first policy of the role", actor, approval), IMMEDIATE
    strategy = chosen(rollout.asked_strategy or setting, _heldout_improvement(rollout))
    if strategy is None and approved is None and not rollout.override:
        return Decision(Verdict.REFUSE, "held-out improvement is negative", ITSELF), rollout.strategy
    passed = "every gate passed" if _was_compared(rollout) else f"no gate refused it; {HELDOUT} compared nothing"
    reason = approved.reason if approved else passed
    if rollout.override:
        reason, actor = rollout.reason, rollout.actor
    if strategy == IMMEDIATE:
        return Decision(Verdict.PROMOTE, f"{reason}; strategy {strategy}", actor, approval), strategy
    if strategy is None or state_after_gates(strategy, soaks=rules.soaks) is State.PROMOTED:
        strategy = CANARY
    if strategy == BLUE_GREEN and approved is None and not (rollout.asked_strategy or _was_compared(rollout)):
        strategy, reason = CANARY, f"{reason}: stage by stage instead of {BLUE_GREEN}, whose soak asks no evidence"
    return Decision(Verdict.START, reason, actor, approval), strategy


def state_after_gates(strategy: str, *, soaks: bool) -> State:
    """Where the strategy leads. Without a hold-back there is nothing to compare with, and no soak."""
    first = STRATEGIES[strategy]
    return State.PROMOTED if first is State.SOAKING and not soaks else first


def chosen(setting: str, improvement: float | None) -> str | None:
    """Name of the strategy for a candidate with this held-out improvement; None means: do not deploy it.

    Only `auto` looks at the improvement: at least .05 goes out as blue_green, anything else from 0 up (or unknown) as a
    canary, and a negative improvement is refused. It never chooses `immediate`, which no test watches.
    """
    if setting != AUTO:
        return setting
    if improvement is None:
        return CANARY
    if improvement < 0:
        return None
    return BLUE_GREEN if improvement >= MODERATE else CANARY


def timely_decision(
    rollout: Rollout, decision: Decision, rules: Rules, approved: Decision | None
) -> tuple[Rollout, Decision]:
    """Replaces a start that would take too long: after a passed replay by one at a higher weight, else by a question.

    The higher weight is that of the last stage whose weight is at most the setting's, taken as a canary whatever the
    setting's strategy is.
    """
    expected = rollout.forecast
    ordered = approved is not None or rollout.override
    if decision.verdict is not Verdict.START or ordered or expected is None or not takes_too_long(expected, rules):
        return rollout, decision
    slow, replay = expected.sentence(rules), replay_result(rollout)
    if replay is None or replay.outcome != PASSED:
        why = f"; {REPLAY}: {replay.reason}" if replay else ""
        return rollout, Decision(Verdict.HOLD, f"needs approval: {slow}{why}", ITSELF)
    stage = first_stage(rules)
    sooner = forecast_at_rate(expected.per_day / DAY_S, rules, rollout.subjects_before, stage, rollout.cost)
    sooner = msgspec.structs.replace(sooner, seen_in_s=expected.seen_in_s)
    rollout = msgspec.structs.replace(rollout, strategy=CANARY, first_stage=stage, forecast=sooner)
    begins = f"begins at {rules.stages[stage].weight:.0%}, which takes about {sooner.days:.0f} days"
    return rollout, Decision(Verdict.START, f"{slow}; {replay.reason}; {begins}", ITSELF)


def first_stage(rules: Rules) -> int:
    """Where traffic begins after a passed replay: at the last stage whose weight is at most the setting's."""
    return max((n for n, stage in enumerate(rules.stages) if stage.weight <= rules.replay_weight), default=0)


def replay_result(rollout: Rollout) -> GateResult | None:
    """The result of shadow replay, if it ran."""
    return next((result for result in rollout.gates if result.gate == REPLAY), None)


def _was_compared(rollout: Rollout) -> bool:
    outcomes = {result.gate: result.outcome for result in rollout.gates}
    return PASSED in (outcomes.get(OFF_POLICY), outcomes.get(HELDOUT, PASSED))


def _heldout_improvement(rollout: Rollout) -> float | None:
    for result in rollout.gates:
        if result.gate == HELDOUT and isinstance(result.evidence.get("difference"), int | float):
            return float(result.evidence["difference"])
    return None
