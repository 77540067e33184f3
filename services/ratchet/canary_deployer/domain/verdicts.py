"""What to do with a rollout now, from its statistics, its stage and its age."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.canary_deployer.domain.rollout import Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.statistics import (
    combined_promotion,
    combined_rollback,
    past_margin,
)
from ratchet.canary_deployer.domain.trip_wires import Tripped


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, who took it and why."""

    verdict: Verdict
    reason: str
    actor: str
    approval: str | None = None
    """New approval status, when an operator's act changes it."""


ITSELF = "canary_deployer"
"""Actor of every decision that no operator took."""


def decide(rollout: Rollout, tripped: Tripped | None, rules: Rules) -> Decision | None:
    """The decision that is due, None while there is none. Rolling back comes before everything else."""
    alarm = _alarm(rollout, tripped, rules)
    if alarm is not None:
        return alarm
    if rollout.state is State.SOAKING:
        return _after_soak(rollout, rules)
    return _in_stage(rollout, rules) if rollout.state is State.RUNNING else None


def waiting_for(rollout: Rollout, rules: Rules) -> list[str]:
    """What the current stage still lacks, one line each; empty when it may be left."""
    stage = rules.stages[rollout.stage]
    return [
        *_stage_lacks(rollout, stage, rules),
        *(_evidence_lacks(rollout, rules) if last(rollout, rules) else []),
    ]


def last(rollout: Rollout, rules: Rules) -> bool:
    """Whether the promotion decision is taken in this stage."""
    return rollout.stage == len(rules.stages) - 1


def proven(rollout: Rollout, rules: Rules) -> bool:
    """Whether the evidence for promotion is there."""
    return not _evidence_lacks(rollout, rules)


def _alarm(rollout: Rollout, tripped: Tripped | None, rules: Rules) -> Decision | None:
    if tripped is not None:
        return Decision(Verdict.ROLL_BACK, f"trip wire {tripped.wire}: {tripped.reason}", ITSELF)
    peak = rollout.watch.statistics.peak_rollback
    if peak < rules.rollback_threshold:
        return None
    worse = f"worse than the margin: e-value {peak:.3g} reached {rules.rollback_threshold:g}"
    return Decision(Verdict.ROLL_BACK, worse, ITSELF)


def _in_stage(rollout: Rollout, rules: Rules) -> Decision | None:
    missing = waiting_for(rollout, rules)
    if not missing:
        return _onward(rollout, rules)
    if rollout.age_s >= rules.deadline_s:
        return Decision(Verdict.HOLD, f"undecided at the deadline: {'; '.join(missing)}", ITSELF)
    return None


def _onward(rollout: Rollout, rules: Rules) -> Decision:
    if last(rollout, rules):
        evidence = combined_promotion(rollout.watch.statistics, rules)
        reason = f"not worse than the margin: e-value {evidence:.3g} reached {rules.promotion_threshold:g}"
        return Decision(Verdict.PROMOTE, reason, ITSELF)
    weight = rules.stages[rollout.stage + 1].weight
    return Decision(Verdict.ADVANCE, f"stage complete without alarm, on to {weight:.0%}", ITSELF)


def _after_soak(rollout: Rollout, rules: Rules) -> Decision | None:
    if rollout.stage_age_s < rules.lead_s + rules.soak_s:
        return None
    return Decision(Verdict.PROMOTE, f"soaked for {rules.soak_s:g} s without alarm", ITSELF)


def _stage_lacks(rollout: Rollout, stage: Stage, rules: Rules) -> list[str]:
    statistics = rollout.watch.statistics
    lacks: list[str] = []
    passed_s = max(0.0, rollout.stage_age_s - rules.lead_s)
    if passed_s < stage.min_s:
        lacks.append(f"{passed_s:.0f} of {stage.min_s:g} s in this stage")
    finished = statistics.canary.trajectories - rollout.stage_base
    if finished < stage.min_trajectories:
        lacks.append(f"{finished} of {stage.min_trajectories} canary trajectories in this stage")
    caution = combined_rollback(statistics, rules)
    if caution >= rules.caution_threshold:
        lacks.append(f"rollback e-value {caution:.3g} below {rules.caution_threshold:g}")
    return lacks


def _evidence_lacks(rollout: Rollout, rules: Rules) -> list[str]:
    statistics = rollout.watch.statistics
    e_values = {name: statistics.tests[name].e_promotion for name in rules.promotion_metrics}
    short = [
        f"promotion e-value of {name} {value:.3g} of {rules.promotion_threshold:g}"
        for name, value in e_values.items()
        if value < rules.promotion_threshold
    ]
    beyond = past_margin(statistics, rules)
    return short + [f"{name} is {d:.3f} worse, the margin is {rules.margin_of(name):g}" for name, d in beyond.items()]
