"""Which policy answers a call: stickiness, lapsed leases and rollbacks. Pure, but for the arm it updates."""

from __future__ import annotations

from datetime import datetime

from ratchet.contract import PolicyClaim, Start
from ratchet.contract.state import PolicyVersion, Route, ServedPolicy
from ratchet.gateway.domain.arms import Arm
from ratchet.rules.arms import MIXED, PINNED, STABLE, Assignment, arm_of


def assign(route: Route, arm: Arm, *, lapsed: bool) -> Assignment | None:
    """The policy for the next call of a trajectory in a role; None when the role serves none.

    A trajectory keeps the policy that its first call met for as long as the route still names it, as stable, previous
    or canary. A rollback or a lapsed lease moves it to stable, for good, and marks it mixed. One that begins while the
    lease has lapsed is plainly stable: no canary was on offer.
    """
    if route.stable is None:
        return None
    if arm.assignment is None:
        arm.assignment = Assignment(STABLE, 0.0, route.stable) if lapsed else arm_of(route, arm.trajectory_id)
    first = arm.assignment
    if first is None:
        return None
    if first.arm == PINNED or not _serves(route, first.policy) or (_is_canary(route, first.policy) and lapsed):
        arm.mixed = True
        arm.assignment = Assignment(STABLE, first.weight, route.stable)
    return arm.assignment


def start_of(route: Route, arm: Arm, assignment: Assignment, *, lapsed: bool, at: datetime) -> Start:
    """What is announced of a trajectory whose arm was just drawn."""
    canary = None if lapsed else route.canary
    return Start(
        trajectory_id=arm.trajectory_id,
        timestamp=at,
        policy=claim_of(arm.role, assignment, mixed=False),
        role=arm.role,
        rollout_id=canary.rollout_id if canary else None,
        centres=canary.centres if canary else None,
        latency_scale_ms=canary.latency_scale_ms if canary else None,
    )


def pin(version: PolicyVersion, arm: Arm) -> Assignment:
    """A version that was asked for by name; a trajectory that met another policy before is mixed."""
    policy = ServedPolicy(version=version.version, name=version.name, digest=version.digest)
    asked = Assignment(PINNED, 0.0, policy)
    if arm.assignment is None:
        arm.assignment = asked
    elif arm.assignment.policy != policy:
        arm.mixed = True
    return asked


def fall_back(route: Route | None, arm: Arm, failed: Assignment) -> Assignment | None:
    """Stable in the place of a canary, or of a former stable that the trajectory kept, for good.

    None where stable is what failed, where there is none, or for a version asked for by name. The trajectory is mixed
    from here on: it counts for no arm and trains nobody.
    """
    if failed.arm == PINNED or route is None or route.stable is None or failed.policy == route.stable:
        return None
    arm.mixed = True
    arm.assignment = Assignment(STABLE, failed.weight, route.stable)
    return arm.assignment


def lend(policy: ServedPolicy, arm: Arm, failed: Assignment | None) -> Assignment | None:
    """A model that is no policy of ours, in the place of one that failed, or for a role that has none yet (`failed`
    is None). None where a version was asked for by name."""
    if failed is None:
        return Assignment(STABLE, 0.0, policy)
    if failed.arm == PINNED:
        return None
    arm.mixed = True
    return Assignment(failed.arm, failed.weight, policy)


def claim_of(role: str, assignment: Assignment, *, mixed: bool) -> PolicyClaim:
    """What the turn says of its policy."""
    policy = assignment.policy
    arm = MIXED if mixed else assignment.arm
    return PolicyClaim(role=role, version=policy.version, digest=policy.digest, arm=arm, weight=assignment.weight)


def without_canary(route: Route) -> Route:
    """The route as it may be kept on disk: a canary weight does not outlive the process that saw its lease."""
    return Route(
        role=route.role,
        stable=route.stable,
        previous=route.previous,
        next_version=route.next_version,
        audit_hash=route.audit_hash,
    )


def _serves(route: Route, policy: ServedPolicy) -> bool:
    canary = route.canary.policy if route.canary else None
    return policy in {route.stable, route.previous, canary}


def _is_canary(route: Route, policy: ServedPolicy) -> bool:
    return route.canary is not None and policy == route.canary.policy
