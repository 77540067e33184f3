"""Gate `off_policy`: what a planner's selector would have earned on the plans that stable made, from stable's log.

`core.planning.off_policy` has the estimand, the estimators and when it refuses to judge. The gate fails only what is
shown to be worse; where the log says too little, it does not run, and the figures say why. The canary judges then, and
it alone judges plans that the candidate splits otherwise.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import OFF_POLICY
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.base import Gate, PlannerTools
from ratchet.core.contract.bundle import Bundle
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected
from ratchet.core.planning.off_policy import Judgement, judge

MARGIN = 0.2
"""Mean reward of a decision that a candidate may lose: what two points of success are worth."""
NO_CALLS = "it plans workflows and answers no calls: there is nothing to ask it"


@dataclass(frozen=True, slots=True)
class OffPolicyGate:
    """Judges planners; what plans no workflows does not concern it."""

    tools: PlannerTools | None

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Raises `Unavailable` while object store or coordinator is away."""
        tools = self.tools
        if tools is None:
            return _not_run("nothing reads planners here")
        try:
            ref = (await tools.bundle_of(candidate)).planner
            planner = await tools.planner_of(ref) if ref is not None else None
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(OFF_POLICY, FAILED, f"its planner cannot be loaded: {error}")
        if planner is None:
            return _not_run("it plans no workflows")
        if stable is None:
            return _not_run("there is no stable policy to compare with")
        try:
            executions = await tools.executions(stable)
        except Rejected as error:
            return _not_run(str(error))
        judgement = await asyncio.to_thread(judge, executions, planner)
        return _verdict(judgement, stable)


def _verdict(judgement: Judgement, stable: PolicyVersion) -> GateResult:
    evidence: JsonObject = dataclasses.asdict(judgement)
    difference = judgement.difference
    if difference is None:
        of_log = (
            f"{judgement.executions} executions of {stable.name}, without {judgement.excluded} that it learned from"
        )
        return _not_run(f"{judgement.refusal} ({of_log})", evidence)
    figures = (
        f"{difference.value:+.3f} of reward a decision against {stable.name}, 95 % interval {difference.low:+.3f} ..."
        f" {difference.high:+.3f}, from {judgement.executions} executions"
    )
    if difference.high < 0:
        return GateResult(OFF_POLICY, FAILED, f"it is worse: {figures}", evidence)
    if difference.low > -MARGIN:
        return GateResult(OFF_POLICY, PASSED, figures, evidence)
    return _not_run(
        f"the log shows neither that it is worse nor that it loses less than {MARGIN:g}: {figures}", evidence
    )


def _not_run(why: str, evidence: JsonObject | None = None) -> GateResult:
    return GateResult(OFF_POLICY, NOT_RUN, why, evidence or {})


@dataclass(frozen=True, slots=True)
class OfCalls:
    """A gate that asks a candidate, or looks at answers: it does not run for one that plans workflows."""

    name: str
    gate: Gate
    bundle_of: Callable[[PolicyVersion], Awaitable[Bundle]]

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """What cannot be read is the gate's own matter."""
        if candidate.kind == BUNDLE and await self._plans(candidate):
            return GateResult(self.name, NOT_RUN, NO_CALLS)
        return await self.gate.check(candidate, stable)

    def forget(self, role: str) -> None:
        """See `Remembers`."""
        forget = getattr(self.gate, "forget", None)
        if forget is not None:
            forget(role)

    async def _plans(self, candidate: PolicyVersion) -> bool:
        try:
            return (await self.bundle_of(candidate)).planner is not None
        except (Rejected, NotFound, DigestMismatch):
            return False
