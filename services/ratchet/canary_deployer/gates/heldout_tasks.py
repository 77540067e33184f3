"""Gate `heldout_tasks`: candidate and stable play the same held-out tasks; a clear loss refuses the candidate.

It fails when the lower confidence bound of the paired score difference is below minus the margin
(`domain/paired.py`). The gate is a filter before traffic, not the guarantee: its confidence is therefore moderate, so
that a policy equal to stable usually passes; the canary's tests bound the errors. The evidence says how often an
equal policy would pass with this many tasks.

A run that brings no results is no verdict, for an engine may be slow and a file may have changed: a person decides.

A task whose request is refused for both policies shows nothing of either and is in no comparison; with none left, a
person decides.

Without tasks it compares nothing, says so, and leaves the candidate to the canary, whose tests bound the errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import HELDOUT
from ratchet.canary_deployer.domain.paired import Played, compare, paired_differences
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.domain.summary import ratio
from ratchet.canary_deployer.gates.base import Heldout, HeldoutRun
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Unavailable
from ratchet.core.rules.engines import ANY_ROLE

MARGIN, CONFIDENCE = 0.05, 0.8
"""The lower bound must not lie below minus the margin. With 400 sampled tasks an equal policy passes in 67 to 84 % of
all cases, at .95 it would in 35 to 55 %; one that is .2 worse never does."""
NONE_SOLVED = "neither policy solved a task: these tasks cannot tell the two apart"
NOT_CONFIGURED = (
    "nothing was compared before traffic, which the canary's tests watch: name a task file of the role in"
    " RATCHET_CANARY_TASK_FILES"
)


@dataclass(frozen=True, slots=True)
class HeldoutGate:
    """Pairs both policies' scores by task; stable's results are remembered."""

    task_files: Mapping[str, Heldout]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Stable first: without its results the candidate's mean nothing."""
        heldout = self.task_files.get(candidate.role) or self.task_files.get(ANY_ROLE)
        if heldout is None:
            return GateResult(HELDOUT, NOT_RUN, NOT_CONFIGURED)
        if stable is None:
            return GateResult(HELDOUT, NEEDS_APPROVAL, "there is no stable policy to compare with")
        usual = await heldout.play_or_recall(stable)
        if usual.problem is not None or not usual.played.scores:
            reason = f"stable's held-out run is no use: {usual.problem or 'it reported no task'}"
            return GateResult(HELDOUT, NEEDS_APPROVAL, reason, _figures("stable", usual))
        fresh = await heldout.play(candidate)
        if fresh.problem is None and fresh.source != usual.source:
            raise Unavailable("the held-out tasks changed while they were played: they are played again")
        evidence = {**fresh.source, **_figures("candidate", fresh), **_figures("stable", usual)}
        if fresh.problem is not None:
            return GateResult(HELDOUT, NEEDS_APPROVAL, f"held-out run: {fresh.problem}", evidence)
        return _compared(fresh.played, usual.played, evidence)


def _compared(fresh: Played, usual: Played, evidence: JsonObject) -> GateResult:
    evidence |= {
        "refused_for_both": len(fresh.refused & usual.refused),
        "missing_tasks": len(usual.scores.keys() - fresh.scores.keys()),
    }
    differences = paired_differences(fresh, usual)
    if not differences:
        reason = f"nothing was compared: every one of the {len(usual.scores)} tasks is refused for both policies"
        return GateResult(HELDOUT, NEEDS_APPROVAL, reason, evidence)
    comparison = compare(differences, CONFIDENCE, MARGIN)
    figures = comparison.figures()
    if not fresh.successes and not usual.successes:
        figures["note"] = "; ".join([*([figures["note"]] if "note" in figures else []), NONE_SOLVED])
    outcome = PASSED if comparison.passed else FAILED
    return GateResult(HELDOUT, outcome, comparison.sentence(), {**evidence, **figures})


def _figures(policy: str, run: HeldoutRun) -> JsonObject:
    played = run.played
    mean = sum(played.scores.values()) / len(played.scores) if played.scores else None
    return {
        f"{policy}_tasks": len(played.scores),
        f"{policy}_refused": len(played.refused),
        f"{policy}_success": ratio(played.successes, played.tries, "no tasks"),
        **({f"{policy}_score": round(mean, 4)} if mean is not None else {}),
        f"{policy}_valid_calls": ratio(played.valid_calls, played.calls, "no calls"),
        f"{policy}_seconds": round(run.seconds, 2),
        f"{policy}_cached": run.cached,
    }
