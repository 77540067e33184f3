"""Which policy answers a call: stickiness, lapsed leases and rollbacks. Pure, but for the conversation it updates."""

from __future__ import annotations

from ratchet.gateway.domain.conversations import Conversation
from ratchet.messages import PolicyClaim
from ratchet.messages.routing import MIXED, PINNED, STABLE, Assignment, arm_of
from ratchet.messages.state import PolicyVersion, Route, ServedPolicy


def assign(route: Route, conversation: Conversation, *, lapsed: bool) -> Assignment | None:
    """The policy for the next call of a trajectory; None when the role serves none.

    A trajectory keeps the policy that its first call met for as long as the route still names it, as stable, previous
    or canary. A rollback or a lapsed lease moves it to stable, for good, and marks it mixed. One that begins while the
    lease has lapsed is plainly stable: no canary was on offer.
    """
    if route.stable is None:
        return None
    if conversation.assignment is None:
        conversation.assignment = (
            Assignment(STABLE, 0.0, route.stable)
            if lapsed
            else arm_of(route, conversation.trajectory_id, conversation.first_call_at)
        )
    first = conversation.assignment
    if first is None:
        return None
    if first.arm == PINNED or not _serves(route, first.policy) or (_is_canary(route, first.policy) and lapsed):
        conversation.mixed = True
        conversation.assignment = Assignment(STABLE, first.weight, route.stable)
    return conversation.assignment


def pin(version: PolicyVersion, conversation: Conversation) -> Assignment:
    """A version that was asked for by name; a trajectory that met another policy before is mixed."""
    policy = ServedPolicy(version=version.version, name=version.name, digest=version.digest)
    asked = Assignment(PINNED, 0.0, policy)
    if conversation.assignment is None:
        conversation.assignment = asked
    elif conversation.assignment.policy != policy:
        conversation.mixed = True
    return asked


def fall_back(route: Route | None, conversation: Conversation, failed: Assignment) -> Assignment | None:
    """Stable in the place of a canary, or of a former stable that the trajectory kept, for good.

    None where stable is what failed, where there is none, or for a version asked for by name. The trajectory is mixed
    from here on: it counts for no arm and trains nobody.
    """
    if failed.arm == PINNED or route is None or route.stable is None or failed.policy == route.stable:
        return None
    conversation.mixed = True
    conversation.assignment = Assignment(STABLE, failed.weight, route.stable)
    return conversation.assignment


def lend(policy: ServedPolicy, conversation: Conversation, failed: Assignment | None) -> Assignment | None:
    """A model that is no policy of ours, in the place of one that failed, or for a role that has none yet (`failed`
    is None). None where a version was asked for by name."""
    if failed is None:
        return Assignment(STABLE, 0.0, policy)
    if failed.arm == PINNED:
        return None
    conversation.mixed = True
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
