"""What follows from a rollout's state: the role's route, and the stage of each of its policies.

Both are derived, not remembered: deriving them again changes nothing, so a crash between writes is repaired by
repeating them.
"""

from __future__ import annotations

import msgspec

from ratchet.canary_deployer.domain.gating import TAKES_TOOLS
from ratchet.canary_deployer.domain.rollout import WITH_TRAFFIC, Rollout, State
from ratchet.core.contract.state import CanaryRoute, PolicyStage, PolicyVersion, Route

CANDIDATE_STAGE: dict[State, PolicyStage] = {
    State.GATING: PolicyStage.REGISTERED,
    State.AWAITING_APPROVAL: PolicyStage.REGISTERED,
    State.RUNNING: PolicyStage.CANARY,
    State.PAUSED: PolicyStage.CANARY,
    State.HELD: PolicyStage.CANARY,
    State.SUSPENDED: PolicyStage.CANARY,
    State.SOAKING: PolicyStage.CANARY,
    State.PROMOTED: PolicyStage.STABLE,
    State.ROLLED_BACK: PolicyStage.ROLLED_BACK,
    State.REFUSED: PolicyStage.REFUSED,
    State.ABORTED: PolicyStage.ROLLED_BACK,
    State.WITHDRAWN: PolicyStage.ROLLED_BACK,
    State.SUPERSEDED: PolicyStage.SUPERSEDED,
    State.REVERTED: PolicyStage.STABLE,
}


def expected_route(route: Route, rollout: Rollout) -> Route:
    """The route that belongs to the rollout's state, also where `route` was lost or set back meanwhile."""
    stable, previous, canary = rollout.stable, route.previous, None
    if rollout.state is State.REVERTED:
        stable, previous = rollout.candidate, None
    elif rollout.state is State.PROMOTED:
        stable, previous = rollout.candidate, rollout.stable
    elif rollout.state in WITH_TRAFFIC and rollout.weight > 0:
        same = route.canary is not None and route.canary.rollout_id == rollout.rollout_id
        canary = CanaryRoute(
            rollout_id=rollout.rollout_id,
            policy=rollout.candidate,
            salt=rollout.salt,
            schedule=list(rollout.schedule),
            lease=route.canary.lease if same and route.canary else 1,
            centres=rollout.statistics.centres or None,
            latency_scale_ms=rollout.statistics.latency_scale_ms,
        )
    return msgspec.structs.replace(route, stable=stable, previous=previous, canary=canary, audit_hash=rollout.last_hash)


def decided_route(route: Route, rollout: Rollout) -> Route:
    """The route as decisions leave it, whatever `route` is. What changes between two decisions stays as it is there:
    the lease, what is measured meanwhile, and the number of the next version.
    """
    decided = expected_route(route, rollout)
    if route.canary is None or decided.canary is None or route.canary.rollout_id != rollout.rollout_id:
        return decided
    measured = msgspec.structs.replace(
        decided.canary, centres=route.canary.centres, latency_scale_ms=route.canary.latency_scale_ms
    )
    return msgspec.structs.replace(decided, canary=measured)


def renewed_route(route: Route, rollout: Rollout) -> Route:
    """The expected route; the lease of its canary, if it has one, has grown."""
    route = expected_route(route, rollout)
    if route.canary is None:
        return route
    return msgspec.structs.replace(route, canary=msgspec.structs.replace(route.canary, lease=route.canary.lease + 1))


def staged_policy(policy: PolicyVersion, rollout: Rollout) -> PolicyVersion:
    """A policy of the rollout with the stage, reason and gate evidence that belong to its state.

    When a parked queue goes on, its policies keep the reasons for which they got their stages.
    """
    stage, reason, gate = PolicyStage.STABLE, rollout.reason, policy.gate
    if policy.version == rollout.candidate.version:
        stage = CANDIDATE_STAGE[rollout.state]
        gate = {**(gate or {}), **{result.gate: msgspec.to_builtins(result) for result in rollout.gates}} or None
    elif rollout.ended is not None and policy.version == rollout.ended.candidate.version:
        stage = PolicyStage.ROLLED_BACK if rollout.ended.had_traffic else PolicyStage.REGISTERED
    elif rollout.state is State.REVERTED:
        stage = PolicyStage.ROLLED_BACK
    else:
        reason = policy.reason
        if rollout.state is State.PROMOTED:
            stage = PolicyStage.ARCHIVED
    if not (rollout.active or rollout.parked) and stage == policy.stage:
        reason = policy.reason
    return msgspec.structs.replace(
        policy, stage=stage, reason=reason, gate=gate, takes_tools=_takes_tools(policy, rollout)
    )


def _takes_tools(policy: PolicyVersion, rollout: Rollout) -> bool | None:
    """What the gate of that name saw in this rollout, whatever followed from it; else what was known before."""
    checked = [result for result in rollout.gates if result.gate == TAKES_TOOLS]
    if not checked or policy.version != rollout.candidate.version:
        return policy.takes_tools
    known: object = checked[-1].evidence.get("takes_tools")
    return known if isinstance(known, bool) else None
