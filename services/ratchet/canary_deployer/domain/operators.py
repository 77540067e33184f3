"""The orders of operators: the decision that each stands for, and advice where it is not possible."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ratchet.canary_deployer.domain.gating import replay_result
from ratchet.canary_deployer.domain.rollout import PASSED, WITH_TRAFFIC, Decision, IllegalMove, Rollout, State, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.verdicts import proven, waiting_for
from ratchet.core.contract.state import Route
from ratchet.core.errors import Conflict


class Act(StrEnum):
    """The verbs of the control API and of `ratchet rollout`."""

    APPROVE = "approve"
    """Start the canary that waits for approval."""
    PAUSE = "pause"
    """Freeze the stage; a rollback is still possible."""
    RESUME = "resume"
    """Go on after a pause or at a deadline; or let a parked queue go on."""
    PROMOTE = "promote"
    """Make the canary stable now; past an undecided canary only with override."""
    ROLLBACK = "rollback"
    """End a canary at once, or withdraw a candidate that had no traffic yet."""
    REVERT = "revert"
    """Undo the last promotion, whatever runs, and park the queue."""


TAKES_TRAFFIC = frozenset({Act.PAUSE, Act.ROLLBACK, Act.REVERT})
"""Those that keep traffic from a policy, or take it away."""


@dataclass(frozen=True, slots=True)
class Order:
    """Who gives the order, and why."""

    actor: str
    reason: str
    override: bool = False
    """A start: waive the gates that can be waived. A promotion: past an undecided canary."""
    strategy: str | None = None
    """A start: the strategy; None: the setting's."""
    rollout_id: str | None = None
    """The rollout that it is meant for; None: the newest one."""

    def approval(self) -> Decision:
        """The start of a rollout by this order."""
        approval = "emergency_override" if self.override else "manual_approved"
        return Decision(Verdict.START, self.reason, self.actor, approval)


def decision_for(rollout: Rollout, act: Act, order: Order, rules: Rules) -> Decision:
    """The decision that an act on this rollout stands for. Raises `IllegalMove`, or `Conflict` for an undecided one."""
    approval, reason = None, order.reason
    match act:
        case Act.ROLLBACK:
            if not rollout.active:
                raise IllegalMove(rollout.state, act)
            verdict = Verdict.ROLL_BACK if rollout.state in WITH_TRAFFIC else Verdict.ABORT
        case Act.PROMOTE:
            verdict, approval = Verdict.PROMOTE, _promotion_approval(rollout, order, rules)
            if approval == "emergency_override" and (replay := replay_result(rollout)) and replay.outcome == PASSED:
                reason = f"{reason} ({replay.reason})"
        case Act.PAUSE:
            verdict = Verdict.PAUSE
        case _:
            verdict = Verdict.RESUME
            if not rollout.active and not rollout.parked:
                raise IllegalMove(rollout.state, act)
    return Decision(verdict, reason, order.actor, approval)


def why_no_revert(role: str, route: Route | None) -> str:
    """Why no promotion can be undone, and what to do instead."""
    serving = f"{route.stable.name} serves and has" if route and route.stable else f"{role} has"
    way = f"roll out another version with `ratchet rollout start {role} VERSION`"
    return f"{serving} no predecessor to go back to: {way}"


def why_no_start(rollout: Rollout) -> str:
    """Why another rollout cannot start, and how to end the one that is in its way."""
    name, role = rollout.candidate.name, rollout.role
    ways = [f"end it with `ratchet rollout rollback {role}`"]
    if rollout.state is State.AWAITING_APPROVAL:
        ways.insert(0, f"start it with `ratchet rollout approve {role}`")
    ways.append(f"or undo the last promotion at once with `ratchet rollout revert {role}`")
    return f"{role} has a rollout of {name} that is {rollout.state}: {', '.join(ways)}"


def _promotion_approval(rollout: Rollout, order: Order, rules: Rules) -> str:
    """Approval status of an operator's promotion. Raises `IllegalMove` before traffic, `Conflict` when undecided."""
    if rollout.state not in WITH_TRAFFIC:
        raise IllegalMove(rollout.state, Verdict.PROMOTE)
    if proven(rollout, rules):
        return "manual_approved"
    if order.override:
        return "emergency_override"
    missing = "; ".join(waiting_for(rollout, rules))
    raise Conflict(
        f"{rollout.candidate.name} is undecided ({missing}): wait, or promote it past the evidence with override, "
        f"`ratchet rollout promote {rollout.role} --override`"
    )
