"""A rollout as operators see it."""

from __future__ import annotations

import msgspec

from ratchet.canary_deployer.domain.announcements import e_values, statistics
from ratchet.canary_deployer.domain.rollout import Rollout, State
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.verdicts import waiting_for
from ratchet.contract.http.rollouts import RolloutOut


def summary(rollout: Rollout, rules: Rules, fault: str | None = None) -> RolloutOut:
    """Everything about a rollout but its bookkeeping. `fault`: why it cannot go on, where it cannot."""
    shown = {
        "rollout_id": rollout.rollout_id,
        "role": rollout.role,
        "state": str(rollout.state),
        "strategy": rollout.strategy,
        "parked": rollout.parked,
        "forecast": rollout.forecast.shown() if rollout.forecast else None,
        "horizon": msgspec.to_builtins(rollout.horizon),
        "candidate": rollout.candidate,
        "stable": rollout.stable,
        "stage": rollout.stage,
        "weight": rollout.weight,
        "stage_since": rollout.stage_since,
        "waiting_for": waiting_for(rollout, rules) if rollout.state in (State.RUNNING, State.SOAKING) else [],
        "stage_age_s": round(rollout.stage_age_s, 1),
        "deadline_in_s": _deadline_in_s(rollout, rules),
        "reason": rollout.reason,
        "actor": rollout.actor,
        "approval": rollout.approval,
        "created_at": rollout.created_at,
        "finished_at": rollout.finished_at,
        "gates": [msgspec.to_builtins(result) for result in rollout.gates],
        **statistics(rollout.watch, rules),
        "pending": rollout.watch.pending,
        "noticed": list(rollout.noticed),
        "e_values": e_values(rollout.watch, rules),
        "margin": rules.margin,
        "decisions": rollout.decisions,
        "last_hash": rollout.last_hash,
        "fault": fault,
    }
    return msgspec.convert(shown, RolloutOut)


def _deadline_in_s(rollout: Rollout, rules: Rules) -> float | None:
    """For how long the rollout may go on undecided; None when it does not gather evidence."""
    if rollout.state is not State.RUNNING:
        return None
    return round(max(0.0, rules.deadline_s - rollout.age_s), 1)
