"""Gate `heldout_tasks`: candidate and stable play the same held-out tasks; a clear loss refuses the candidate.

It fails when the lower confidence bound of the paired score difference is below minus the margin
(`domain/paired.py`). The gate is a filter before traffic, not the guarantee: its confidence is therefore moderate, so
that a policy equal to stable usually passes; the canary's tests bound the errors. The evidence says how often an
equal policy would pass with this many tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import HELDOUT
from ratchet.canary_deployer.domain.paired import compare, paired_differences
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, PASSED, GateResult
from ratchet.canary_deployer.domain.summary import share
from ratchet.canary_deployer.gates.base import GateTools, Heldout, HeldoutRun
from ratchet.contract.state import PolicyVersion

NAME = HELDOUT


@dataclass(frozen=True, slots=True)
class HeldoutGate:
    """Paired by task; stable's results are remembered."""

    heldout: Heldout | None
    margin: float
    confidence: float

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Stable first: without its results the candidate's mean nothing."""
        if self.heldout is None:
            return GateResult(NAME, NEEDS_APPROVAL, "no held-out command is configured")
        if stable is None:
            return GateResult(NAME, NEEDS_APPROVAL, "there is no stable policy to compare with")
        usual = await self.heldout.replay(stable)
        if usual.problem is not None or not usual.played.scores:
            problem = usual.problem or "it reported no task"
            return GateResult(
                NAME, NEEDS_APPROVAL, f"stable's held-out run is no use: {problem}", _run("stable", usual)
            )
        fresh = await self.heldout.play(candidate)
        evidence = {**_run("candidate", fresh), **_run("stable", usual)}
        if fresh.problem is not None:
            return GateResult(NAME, FAILED, f"held-out run: {fresh.problem}", evidence)
        return self._judged(fresh, usual, evidence)

    def _judged(self, fresh: HeldoutRun, usual: HeldoutRun, evidence: JsonObject) -> GateResult:
        differences = paired_differences(fresh.played.scores, usual.played.scores)
        comparison = compare(differences, self.confidence, self.margin)
        missing = len(usual.played.scores.keys() - fresh.played.scores.keys())
        evidence |= {**comparison.shown(), "missing_tasks": missing}
        return GateResult(NAME, PASSED if comparison.passed else FAILED, comparison.in_words(), evidence)


def build(tools: GateTools) -> HeldoutGate:
    return HeldoutGate(tools.heldout, tools.heldout_margin, tools.heldout_confidence)


def _run(who: str, run: HeldoutRun) -> JsonObject:
    played = run.played
    mean = played.mean_score
    return {
        f"{who}_tasks": len(played.scores),
        f"{who}_success": share(played.successes, played.tries, "no tasks"),
        **({f"{who}_score": round(mean, 4)} if mean is not None else {}),
        f"{who}_valid_calls": share(played.valid_calls, played.calls, "no calls"),
        f"{who}_malformed_lines": played.malformed,
        f"{who}_seconds": round(run.seconds, 2),
        f"{who}_cached": run.cached,
    }
