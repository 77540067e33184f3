"""What to do with a rollout now, from its evidence, its stage and its age.

Two claims, two rules. A rollback needs one of four tests to use up its share of the budget (`budget.py`); it comes
before everything else and nothing blocks it. A promotion needs the present e-value of every promotion metric, enough
known outcomes on both arms, harm that varies, a stratified difference within every margin, and no rollback evidence
above the caution level. All but the last are asked again when the soak is over: the present watermark has then passed
what was pending, and unseen, when the soak began, so a canary that had just turned worse loses its promotion. Asking
twice only lowers the chance of a false promotion. What is a reason to look but no proof (a safety violation,
complaints, arms that do not get their shares) holds the rollout once and asks a person, in a stage and in the soak.
"""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.canary_deployer.domain.cohorts import FIRST_CALL, SAFETY
from ratchet.canary_deployer.domain.evidence import COMBINED, SAMPLE_RATIO
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Decision, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules, Stage, threshold
from ratchet.canary_deployer.domain.strategies import STRATEGIES

FEEDBACK = "negative_feedback"


def decide(rollout: Rollout, rules: Rules) -> Decision | None:
    """The decision that is due, None while there is none. Rolling back comes before everything else."""
    alarm = _alarm(rollout, rules)
    if alarm is not None:
        return Decision(Verdict.ROLL_BACK, alarm, ITSELF)
    if rollout.state not in (State.RUNNING, State.SOAKING):
        return None
    fresh = {name: why for name, why in concerns(rollout, rules).items() if name not in rollout.noticed}
    if fresh:
        return Decision(Verdict.HOLD, f"a person has to look: {'; '.join(fresh.values())}", ITSELF)
    missing = waiting_for(rollout, rules)
    if not missing:
        return _onward(rollout, rules)
    if rollout.age_s >= rules.deadline_s and not _soak_time_lacks(rollout, rules):
        return Decision(Verdict.HOLD, f"undecided at the deadline: {'; '.join(missing)}", ITSELF)
    return None


def in_soak(rollout: Rollout, rules: Rules) -> bool:
    """Whether the rollout is behind its last stage: soaking, or held there."""
    return rollout.state in WITH_TRAFFIC and rollout.stage >= len(rules.stages)


def waiting_for(rollout: Rollout, rules: Rules) -> list[str]:
    """What the current stage, or the soak, still lacks, one line each; empty when it may be left."""
    if in_soak(rollout, rules):
        return [*_soak_time_lacks(rollout, rules), *_lost_evidence(rollout, rules)]
    stage = rules.stages[rollout.stage]
    return [
        *_stage_lacks(rollout, stage, rules),
        *_coverage_lacks(rollout, rules),
        *(_evidence_lacks(rollout, rules) if last(rollout, rules) else []),
    ]


def last(rollout: Rollout, rules: Rules) -> bool:
    """Whether the promotion decision is taken in this stage."""
    return rollout.stage == len(rules.stages) - 1


def proven(rollout: Rollout, rules: Rules) -> bool:
    """Whether the evidence for promotion is there."""
    return not [*_coverage_lacks(rollout, rules), *_evidence_lacks(rollout, rules)]


def concerns(rollout: Rollout, rules: Rules) -> Mapping[str, str]:
    """By name: what a person should look at. None of it is proof, so none of it rolls back."""
    watch, evidence = rollout.statistics, rollout.statistics.evidence
    stable, canary = watch.stable, watch.canary
    concerned: dict[str, str] = {}
    if canary.violations:
        concerned[SAFETY] = f"{canary.violations} canary trajectories violated safety"
    if min(canary.rated, stable.rated) >= rules.feedback_min_ratings:
        # A stable policy without complaints counts as having one, else the first complaint would be infinitely worse.
        usual, share = max(stable.negative, 1) / stable.rated, canary.negative / canary.rated
        if share > rules.feedback_ratio * usual:
            concerned[FEEDBACK] = f"{share:.0%} of the canary's feedback is negative, {usual:.0%} of stable's"
    ratio = evidence.rollback.get(SAMPLE_RATIO, 1.0)
    if ratio >= threshold(rules.ratio_error):
        concerned[SAMPLE_RATIO] = f"the arms do not get the shares that were drawn: e-value {ratio:.3g}"
    return concerned


def noticed(rollout: Rollout, rules: Rules) -> frozenset[str]:
    """The concerns that a person has been asked about, once the decision of this moment is taken."""
    return frozenset(rollout.noticed) | concerns(rollout, rules).keys()


def _alarm(rollout: Rollout, rules: Rules) -> str | None:
    evidence, budget = rollout.statistics.evidence, rules.budget
    limits = {COMBINED: budget.evidence, FIRST_CALL: budget.first_call, SAFETY: budget.safety}
    words = {COMBINED: "worse than the margin", FIRST_CALL: "first calls fail", SAFETY: "safety violations"}
    for test, share in limits.items():
        value = evidence.rollback.get(test, 1.0)
        if value >= threshold(share):
            return f"{words[test]}: e-value {value:.3g} reached {threshold(share):.4g}"
    if evidence.run <= budget.run:
        return f"canary trajectories fail one after the other: chance at most {evidence.run:.2g} of {budget.run:g}"
    return None


def _onward(rollout: Rollout, rules: Rules) -> Decision:
    if in_soak(rollout, rules):
        return Decision(Verdict.PROMOTE, f"soaked for {rules.soak_s:g} s without alarm", ITSELF)
    if not last(rollout, rules):
        weight = rules.stages[rollout.stage + 1].weight
        return Decision(Verdict.ADVANCE, f"stage complete without alarm, on to {weight:.0%}", ITSELF)
    evidence = min(rollout.statistics.evidence.promotion.values())
    shown = f"not worse than the margin: e-value {evidence:.3g} reached {rules.promotion_threshold:g}"
    if not rules.outcomes:
        return Decision(Verdict.HOLD, f"{shown}; the role has no outcomes, a person decides", ITSELF)
    return Decision(Verdict.PROMOTE, shown, ITSELF)


def _soak_time_lacks(rollout: Rollout, rules: Rules) -> list[str]:
    """What is left of the soak's time; nothing outside of a soak."""
    passed_s = max(0.0, rollout.stage_age_s - rules.lead_s)
    if not in_soak(rollout, rules) or passed_s >= rules.soak_s:
        return []
    return [f"{passed_s:.0f} of {rules.soak_s:g} s of the soak"]


def _lost_evidence(rollout: Rollout, rules: Rules) -> list[str]:
    """What a promotion that began with evidence no longer has; a strategy that began without asks for none."""
    if STRATEGIES[rollout.strategy].first is State.SOAKING:
        return []
    return [*_coverage_lacks(rollout, rules), *_evidence_lacks(rollout, rules)]


def _stage_lacks(rollout: Rollout, stage: Stage, rules: Rules) -> list[str]:
    lacks: list[str] = []
    passed_s = max(0.0, rollout.stage_age_s - rules.lead_s)
    if passed_s < stage.min_s:
        lacks.append(f"{passed_s:.0f} of {stage.min_s:g} s in this stage")
    settled = rollout.statistics.canary.trajectories - rollout.stage_base
    if settled < stage.min_trajectories:
        lacks.append(f"{settled} of {stage.min_trajectories} canary trajectories in this stage")
    caution = rollout.statistics.evidence.caution
    if caution >= rules.caution_threshold:
        lacks.append(f"rollback e-value {caution:.3g} below {rules.caution_threshold:g}")
    return lacks


def _coverage_lacks(rollout: Rollout, rules: Rules) -> list[str]:
    """Too few known outcomes on an arm."""
    if not rules.outcomes:
        return []
    coverage = rollout.statistics.evidence.coverage
    if set(coverage) != {"stable", "canary"}:
        return ["outcomes on both arms"]
    return [
        f"{share:.0%} of the {rules.min_coverage:.0%} of outcomes that must be known on the {arm} arm"
        for arm, share in coverage.items()
        if share < rules.min_coverage
    ]


def _evidence_lacks(rollout: Rollout, rules: Rules) -> list[str]:
    evidence = rollout.statistics.evidence
    values = {name: evidence.promotion.get(name, 1.0) for name in rules.promotion_metrics}
    short = [
        f"promotion e-value of {name} {value:.3g} of {rules.promotion_threshold:g}"
        for name, value in values.items()
        if value < rules.promotion_threshold
    ]
    flat = [f"{name}: every trajectory did the same harm, which shows nothing" for name in evidence.constant]
    if not evidence.varies:
        flat.append("any trajectory that differs from the others")
    beyond = {name: d for name, d in evidence.differences.items() if d > rules.margin_of(name)}
    worse = [f"{name} is {d:.3f} worse, the margin is {rules.margin_of(name):g}" for name, d in beyond.items()]
    return [*short, *flat, *worse]
