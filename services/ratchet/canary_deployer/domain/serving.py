"""What follows from a rollout's state: where traffic goes, and what each policy's stage is.

Both are derived, not remembered: doing it again changes nothing, so a crash between writes is repaired by repeating
them.
"""

from __future__ import annotations

import msgspec

from ratchet.canary_deployer.domain.rollout import WITH_TRAFFIC, Rollout, State
from ratchet.contract.state import CanaryRoute, PolicyStage, PolicyVersion, Route

CANDIDATE_STAGE: dict[State, PolicyStage] = {
    State.GATING: PolicyStage.REGISTERED,
    State.AWAITING_APPROVAL: PolicyStage.REGISTERED,
    State.RUNNING: PolicyStage.CANARY,
    State.PAUSED: PolicyStage.CANARY,
    State.HELD: PolicyStage.CANARY,
    State.SOAKING: PolicyStage.CANARY,
    State.PROMOTED: PolicyStage.STABLE,
    State.ROLLED_BACK: PolicyStage.ROLLED_BACK,
    State.REFUSED: PolicyStage.REFUSED,
    State.ABORTED: PolicyStage.ROLLED_BACK,
    State.SUPERSEDED: PolicyStage.SUPERSEDED,
    State.REVERTED: PolicyStage.STABLE,
}


def expected_route(route: Route, rollout: Rollout) -> Route:
    """The role's route as the rollout's state asks for it, also where it was lost or set back meanwhile."""
    audited = msgspec.structs.replace(route, audit_hash=rollout.last_hash)
    if rollout.state is State.REVERTED:
        return msgspec.structs.replace(audited, stable=rollout.candidate, previous=None, canary=None)
    if rollout.state is State.PROMOTED:
        return msgspec.structs.replace(audited, stable=rollout.candidate, previous=rollout.stable, canary=None)
    canary = _canary_route(route, rollout) if rollout.state in WITH_TRAFFIC else None
    return msgspec.structs.replace(audited, stable=rollout.stable, canary=canary)


def renewed_route(route: Route, rollout: Rollout) -> Route:
    """The settled route with a lease that has grown, while there is one."""
    route = expected_route(route, rollout)
    if route.canary is None:
        return route
    return msgspec.structs.replace(route, canary=msgspec.structs.replace(route.canary, lease=route.canary.lease + 1))


def staged_policy(policy: PolicyVersion, rollout: Rollout) -> PolicyVersion:
    """A policy of the rollout with the stage, reason and gate evidence that its state asks for.

    Letting a parked queue go on says nothing of a policy: each keeps the reason for which it got its stage.
    """
    asked = _restaged(policy, rollout)
    over = not (rollout.active or rollout.parked) and asked.stage == policy.stage
    return msgspec.structs.replace(asked, reason=policy.reason) if over else asked


def _restaged(policy: PolicyVersion, rollout: Rollout) -> PolicyVersion:
    if policy.version == rollout.candidate.version:
        stage = CANDIDATE_STAGE[rollout.state]
        gate = {**(policy.gate or {}), **{result.gate: msgspec.to_builtins(result) for result in rollout.gates}}
        return msgspec.structs.replace(policy, stage=stage, reason=rollout.reason, gate=gate or None)
    if rollout.ended is not None and policy.version == rollout.ended.candidate.version:
        stage = PolicyStage.ROLLED_BACK if rollout.ended.had_traffic else PolicyStage.REGISTERED
        return msgspec.structs.replace(policy, stage=stage, reason=rollout.reason)
    if rollout.state is State.REVERTED:
        return msgspec.structs.replace(policy, stage=PolicyStage.ROLLED_BACK, reason=rollout.reason)
    stage = PolicyStage.ARCHIVED if rollout.state is State.PROMOTED else PolicyStage.STABLE
    return msgspec.structs.replace(policy, stage=stage)


def _canary_route(route: Route, rollout: Rollout) -> CanaryRoute:
    same = route.canary is not None and route.canary.rollout_id == rollout.rollout_id
    return CanaryRoute(
        rollout_id=rollout.rollout_id,
        policy=rollout.candidate,
        salt=rollout.salt,
        schedule=list(rollout.schedule),
        lease=route.canary.lease if same and route.canary else 1,
        centres=rollout.statistics.centres or None,
        latency_scale_ms=rollout.statistics.latency_scale_ms,
    )
