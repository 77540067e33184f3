"""The verdict that is due for a rollout, from its evidence, its stage and its age.

Three claims, three rules. A rollback needs one of five tests by subject to use up its share of the budget
(`rules.Budget`); it comes before everything else and nothing blocks it. Roles whose rule it is are rolled back by one
safety violation too, whatever its chance is at stable's rate: that trip wire is in no budget. The same tests by
trajectory see most harm sooner, but what they show holds for the traffic so far alone, which may be few subjects: they
suspend the canary and ask an operator. One who lets it go on overrules what a test had reached; to suspend it again the
test must come as far once more. A promotion needs the present e-value of every promotion metric by subject and by
trajectory, enough known outcomes on both arms, as many subjects as say something of others, harm that varies, a
stratified difference within every margin, and no rollback evidence above the caution level; a canary that is suspended
is never promoted by itself. When the soak is over, a promotion needs all but the last once more: the present watermark
has then passed the trajectories that were pending, and unseen, when the soak began, so a canary that had just turned
worse loses its promotion. Asking twice only lowers the chance of a false promotion. A concern is no proof (a safety
violation, arms that do not get their shares): it holds the rollout once, in a stage or in the soak, and an
operator decides. A canary of which an engine fails far more calls than of stable leaves no soak by itself, whatever its
strategy asks: an operator may promote it. One whose server does not have the bundle's model is held by its first such
call: a model that has retired does not come back.
"""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.canary_deployer.domain.cohorts import FIRST_CALL, SAFETY
from ratchet.canary_deployer.domain.evidence import COMBINED, FAR_WORSE, SAMPLE_RATIO
from ratchet.canary_deployer.domain.gating import STRATEGIES
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Decision, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import COMPLAINTS, COST, Rules, threshold
from ratchet.canary_deployer.domain.subjects import FEWEST_SUBJECTS

UNANNOUNCED, STREAK = "unannounced", "streak"
LEAST_SHARE = 1e-300
"""A streak's share of the budget is at least this: its inverse stays a number."""
ENGINE, MODEL = "engine", "model"
FEWEST_FAULTED, FAULTED_RATIO, FAULTED_SHARE = 10, 2.0, 0.05
"""Trajectories of the canary of which an engine failed a call; how many times as often as of stable's; and their share:
all three are exceeded where an operator has to look."""
FEWEST_UNANNOUNCED = 20
"""Fewer trajectories without a start may be those of one gateway's bad moment."""
LEAST_APPLIED = 0.9
"""Share of the canary's trajectories that must have met the bundle: a few that did say nothing of what it does."""


def decide(rollout: Rollout, rules: Rules) -> Decision | None:
    """The decision that is due now; None when none is. Rolling back comes before everything else."""
    rules = rollout.under(rules)
    alarm = _alarm(rollout, rules)
    if alarm is not None:
        return Decision(Verdict.ROLL_BACK, alarm, ITSELF)
    if rollout.state is State.SUSPENDED:
        # Far worse takes what weight is left; the deadline ends it.
        if rollout.age_s >= rules.deadline_s:
            return Decision(Verdict.WITHDRAW, "suspended, and no operator decided before the deadline", ITSELF)
        value = rollout.statistics.evidence.suspension.get(FAR_WORSE, 1.0)
        if rollout.weight and value >= rules.far_threshold:
            claim = f"worse by more than {rules.far_margin:g}: e-value {value:.3g} reached {rules.far_threshold:g}"
            return Decision(Verdict.SUSPEND, f"{claim}; {subjects_seen(rollout)}: a person has to look", ITSELF)
        return None
    suspicion = _suspicion(rollout, rules)
    if suspicion is not None:
        return Decision(Verdict.SUSPEND, f"{suspicion}; {subjects_seen(rollout)}: a person has to look", ITSELF)
    return _onwards(rollout, rules) if rollout.state in (State.RUNNING, State.SOAKING) else None


def _onwards(rollout: Rollout, rules: Rules) -> Decision | None:
    """The decision of a canary that no test speaks against: to hold it, or to go on."""
    new = [why for name, why in concerns(rollout, rules).items() if name not in rollout.noticed]
    if new:
        return Decision(Verdict.HOLD, f"a person has to look: {'; '.join(new)}", ITSELF)
    missing = waiting_for(rollout, rules)
    if not missing:
        return _promotion(rollout, rules)
    if rollout.age_s >= rules.deadline_s and not _soak_time_left(rollout, rules):
        return Decision(Verdict.HOLD, f"undecided at the deadline: {'; '.join(missing)}", ITSELF)
    return None


def in_soak(rollout: Rollout, rules: Rules) -> bool:
    """Whether the rollout is behind its last stage: soaking, or held there."""
    return rollout.state in WITH_TRAFFIC and rollout.stage >= len(rules.stages)


def in_last_stage(rollout: Rollout, rules: Rules) -> bool:
    """Whether the stage ends with the promotion decision."""
    return rollout.stage == len(rules.stages) - 1


def waiting_for(rollout: Rollout, rules: Rules) -> list[str]:
    """The conditions that the current stage, or the soak, does not meet yet, one line each.

    A strategy that begins with the soak promotes without evidence for promotion; any other must still have it.
    """
    rules = rollout.under(rules)
    if in_soak(rollout, rules):
        lost = [] if STRATEGIES[rollout.strategy] is State.SOAKING else _missing_proof(rollout, rules)
        return [*_soak_time_left(rollout, rules), *lost, *_engine_faults(rollout)]
    stage = rules.stages[rollout.stage]
    missing: list[str] = []
    passed_s = max(0.0, rollout.stage_age_s - rules.lead_s)
    if passed_s < stage.min_s:
        missing.append(f"{passed_s:.0f} of {stage.min_s:g} s in this stage")
    settled = rollout.statistics.canary.trajectories - rollout.stage_base
    if settled < stage.min_trajectories:
        missing.append(f"{settled} of {stage.min_trajectories} canary trajectories in this stage")
    caution = rollout.statistics.evidence.caution
    if caution >= rules.caution_threshold:
        missing.append(f"rollback e-value {caution:.3g} below {rules.caution_threshold:g}")
    if in_last_stage(rollout, rules):
        return [*missing, *_missing_proof(rollout, rules)]
    return [*missing, *_missing_coverage(rollout, rules)]


def proven(rollout: Rollout, rules: Rules) -> bool:
    """Whether the evidence suffices for a promotion."""
    return not _missing_proof(rollout, rollout.under(rules))


def concerns(rollout: Rollout, rules: Rules) -> Mapping[str, str]:
    """By name: reasons for an operator to look at the rollout. None of them is proof, so none rolls back."""
    stable, canary = rollout.statistics.stable, rollout.statistics.canary
    reasons: dict[str, str] = {}
    if canary.violations:
        reasons[SAFETY] = f"{canary.violations} canary trajectories violated safety"
    if canary.no_model and not stable.no_model:
        reasons[MODEL] = f"the server of {canary.no_model} canary trajectories does not have the bundle's model"
    for seen in _engine_faults(rollout):
        reasons[ENGINE] = f"{seen}: does the policy make it fail?"
    ratio = rollout.statistics.evidence.suspension.get(SAMPLE_RATIO, 1.0)
    if ratio >= threshold(rules.ratio_error):
        reasons[SAMPLE_RATIO] = f"the arms do not get the shares that were drawn: e-value {ratio:.3g}"
    if canary.unannounced >= max(FEWEST_UNANNOUNCED, canary.started):
        called = f"{canary.unannounced} canary trajectories have calls and no start that counts"
        reasons[UNANNOUNCED] = f"{called}, {canary.started} have one: most of its traffic is in no statistic"
    return reasons


def _engine_faults(rollout: Rollout) -> list[str]:
    """That an engine fails far more calls of the canary than of stable; nothing where it does not."""
    stable, canary = rollout.statistics.stable, rollout.statistics.canary
    if canary.faulted < FEWEST_FAULTED:
        return []
    usual, share = stable.faulted / max(stable.started, 1), canary.faulted / canary.started
    if share <= max(FAULTED_RATIO * usual, FAULTED_SHARE):
        return []
    seen = f"{canary.faulted} of {canary.started} canary trajectories, {stable.faulted} of {stable.started} of stable's"
    return [f"the engine failed calls of {seen}"]


def subjects_seen(rollout: Rollout) -> str:
    """How many subjects the evidence is about, in words."""
    counted = rollout.statistics
    started = counted.stable.started + counted.canary.started
    return f"{counted.subjects} subjects seen in {started} trajectories"


def suspicions(rollout: Rollout) -> dict[str, float]:
    """How far the tests by trajectory have come: e-values, and of the streak the inverse of its share."""
    evidence = rollout.statistics.evidence
    values = {name: evidence.suspension.get(name, 1.0) for name in (COMBINED, COMPLAINTS, FIRST_CALL, SAFETY)}
    return values | {STREAK: 1 / max(evidence.run_of_trajectories, LEAST_SHARE)}


def _alarm(rollout: Rollout, rules: Rules) -> str | None:
    """Why the rollout has to be rolled back; None without a test by subject that has used up its share."""
    evidence = rollout.statistics.evidence
    for test, (share, claim) in _claims(rules).items():
        value = evidence.rollback.get(test, 1.0)
        if value >= threshold(share):
            return f"{claim}: e-value {value:.3g} reached {threshold(share):.4g}"
    if evidence.run <= rules.budget.run:
        return (
            f"canary trajectories fail one after the other: chance at most {evidence.run:.2g} of {rules.budget.run:g}"
        )
    return _safety_event(rollout) if rules.safety_rolls_back else None


def _safety_event(rollout: Rollout) -> str | None:
    """That the canary violated safety, with the chance of that at stable's rate: no test bounds it."""
    stable, canary = rollout.statistics.stable, rollout.statistics.canary
    if not canary.violations:
        return None
    usual = stable.violations / max(stable.started, 1)
    chance = 1 - (1 - min(usual, 1.0)) ** canary.started
    return (
        f"{canary.violations} of {canary.started} canary trajectories violated safety, {stable.violations} of"
        f" {stable.started} of stable's, at whose rate {chance:.0%} of canaries as long do"
    )


def _suspicion(rollout: Rollout, rules: Rules) -> str | None:
    """Why the canary has to be suspended; None where no test by trajectory has come far enough."""
    shares = _claims(rules) | {STREAK: (rules.budget.run, "canary trajectories fail one after the other")}
    for test, value in suspicions(rollout).items():
        share, claim = shares[test]
        needed = threshold(share) * rollout.overruled.get(test, 1.0)
        if value >= needed:
            return f"{claim}, for the traffic so far: {value:.3g} reached {needed:.4g}"
    return None


def _claims(rules: Rules) -> dict[str, tuple[float, str]]:
    """By test: its share of the budget, and what it shows."""
    budget = rules.budget
    return {
        COMBINED: (budget.evidence, "worse than the margin"),
        COMPLAINTS: (budget.complaints, "more complaints than the margin"),
        FIRST_CALL: (budget.first_call, "first calls fail"),
        SAFETY: (budget.safety, "safety violations"),
    }


def _promotion(rollout: Rollout, rules: Rules) -> Decision:
    """The decision when the stage, or the soak, meets all its conditions: into the next one, or promotion."""
    if in_soak(rollout, rules):
        return Decision(Verdict.PROMOTE, f"soaked for {rules.soak_s:g} s without alarm", ITSELF)
    if not in_last_stage(rollout, rules):
        weight = rules.stages[rollout.stage + 1].weight
        return Decision(Verdict.ADVANCE, f"stage complete without alarm, on to {weight:.0%}", ITSELF)
    smallest = min(map(rollout.statistics.evidence.proof_of, rules.promotion_metrics))
    reason = f"not worse than the margin: e-value {smallest:.3g} reached {rules.promotion_threshold:g}"
    if not rules.outcomes:
        return Decision(Verdict.HOLD, f"{reason}; the role has no outcomes, a person decides", ITSELF)
    return Decision(Verdict.PROMOTE, reason, ITSELF)


def _soak_time_left(rollout: Rollout, rules: Rules) -> list[str]:
    passed_s = max(0.0, rollout.stage_age_s - rules.lead_s)
    if not in_soak(rollout, rules) or passed_s >= rules.soak_s:
        return []
    return [f"{passed_s:.0f} of {rules.soak_s:g} s of the soak"]


def _missing_coverage(rollout: Rollout, rules: Rules) -> list[str]:
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


def _missing_proof(rollout: Rollout, rules: Rules) -> list[str]:
    evidence = rollout.statistics.evidence
    small: list[str] = []
    for name in rules.promotion_metrics:
        if (value := evidence.proof_of(name)) < rules.promotion_threshold:
            unit = " by subject" if value < evidence.promotion_by_trajectory.get(name, 1.0) else ""
            small.append(f"promotion e-value of {name}{unit} {value:.3g} of {rules.promotion_threshold:g}")
    flat = [f"{name}: every trajectory did the same harm, which shows nothing" for name in evidence.constant]
    if not evidence.varies:
        flat.append("any trajectory that differs from the others")
    worse = [
        f"{name} is {f'{value:.0%} higher' if name == COST else f'{value:.3f} worse'}, the margin is {margin:g}"
        for name, value in evidence.differences.items()
        if name in (*rules.metrics, *rules.promotion_metrics) and value > (margin := rules.margin_of(name))
    ]
    applied = rollout.statistics.canary.applied
    if applied is not None and applied < LEAST_APPLIED:
        flat.append(f"{applied:.0%} of the {LEAST_APPLIED:.0%} of canary trajectories that must have met the bundle")
    seen = rollout.statistics.subjects
    few = [f"{seen} of {FEWEST_SUBJECTS} subjects: fewer say nothing of others"] if seen < FEWEST_SUBJECTS else []
    return [*_missing_coverage(rollout, rules), *few, *small, *flat, *worse]
