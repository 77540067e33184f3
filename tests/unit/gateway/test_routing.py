"""Which policy answers: stickiness, percentages, rollbacks, fallbacks and leases."""

from __future__ import annotations

import msgspec

from ratchet.core.contract import named_id
from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy, WeightStep
from ratchet.core.rules.arms import Assignment, version_0
from ratchet.gateway.domain.routing import (
    ARM_BYTES,
    Arm,
    Arms,
    Lease,
    assign,
    claim_of,
    fall_back,
    fall_back_upstream,
    has_lapsed,
    is_overdue,
    observe,
    pin,
    start_of,
    without_canary,
)
from tests.support.messages import AT

OLD = ServedPolicy(version=1, name="support@1-aaaaaaaa", digest="a" * 64)
NEW = ServedPolicy(version=2, name="support@2-bbbbbbbb", digest="b" * 64)
OTHER = ServedPolicy(version=0, name="provider:big", digest="")
ROUTE = Route(role="support", stable=OLD)
CANARY = Assignment("canary", 0.5, NEW)


def route(weight: float | None, *, stable: ServedPolicy = OLD, lease: int = 1) -> Route:
    steps = [WeightStep(at=AT, weight=weight or 0.0)]
    canary = CanaryRoute(rollout_id=named_id("rollout"), policy=NEW, salt="s", schedule=steps, lease=lease)
    return Route(role="support", stable=stable, canary=canary if weight is not None else None)


def trajectory(number: int) -> Arm:
    return Arm(named_id("trajectory", number), "support")


def test_trajectory_keeps_its_policy_through_weights_and_promotion() -> None:
    for number in range(50):
        talk = trajectory(number)
        first = assign(route(0.3), talk)
        assert assign(route(1.0), talk) == first
        promoted = Route(role="support", stable=NEW, previous=OLD)
        assert assign(promoted, talk) == first
        assert talk.mixed is False


def test_a_rollback_moves_a_canary_trajectory_to_stable_and_marks_it_mixed() -> None:
    talk = trajectory(1)
    assert assign(route(1.0), talk).policy == NEW
    moved = assign(route(None), talk)
    assert (moved.policy, moved.arm, moved.weight) == (OLD, "stable", 1.0)
    assert claim_of("support", moved, mixed=talk.mixed).arm == "mixed"


def test_lapsed_lease_moves_canary_trajectories_alone_to_stable_for_good() -> None:
    canary, stable = trajectory(1), trajectory(2)
    assert assign(route(1.0), canary).policy == NEW
    assert assign(route(1.0), canary, lapsed=True).policy == OLD
    assert assign(route(1.0), canary).policy == OLD
    assert canary.mixed is True
    assert assign(route(0.0), stable).policy == OLD
    assert assign(route(0.0), stable, lapsed=True).policy == OLD
    assert stable.mixed is False


def test_trajectory_that_begins_while_the_lease_has_lapsed_meets_no_canary() -> None:
    talk = trajectory(1)
    first = assign(route(1.0), talk, lapsed=True)
    assert (first.policy, first.arm, first.weight) == (OLD, "stable", 0.0)
    assert assign(route(1.0), talk) == first
    assert talk.mixed is False


def test_trajectory_that_began_before_its_role_had_policy_keeps_version_0() -> None:
    begun, zero = trajectory(1), version_0("support")
    assert assign(Route(role="support"), begun) == Assignment("stable", 0.0, zero)
    for later in (route(1.0, stable=zero), Route(role="support", stable=NEW, previous=zero)):
        assert assign(later, begun).policy == zero
    assert begun.mixed is False
    assert assign(ROUTE, begun).policy == OLD
    assert begun.mixed is True


def test_a_pinned_call_in_a_role_without_a_policy_mixes_no_trajectory() -> None:
    begun = trajectory(1)
    assign(Route(role="support"), begun)
    pin(OTHER, begun, as_sent=True)
    assert begun.mixed is False
    pin(OTHER, begun)
    assert begun.mixed is True


def test_pinned_version_is_served_and_mixes_a_trajectory_of_another() -> None:
    fresh = trajectory(1)
    assert claim_of("support", pin(NEW, fresh), mixed=fresh.mixed).arm == "pinned"
    routed = trajectory(2)
    assign(route(None), routed)
    pin(NEW, routed)
    assert routed.mixed is True


def test_stable_takes_the_place_of_a_canary_for_good_and_mixes_trajectory() -> None:
    conversation = trajectory(1)
    assert fall_back(ROUTE, conversation, CANARY) == Assignment("stable", 0.5, OLD)
    assert conversation.assignment == Assignment("stable", 0.5, OLD)
    assert conversation.mixed is True


def test_stable_takes_the_place_of_a_former_stable_that_a_trajectory_kept() -> None:
    promoted = Route(role="support", stable=NEW, previous=OLD)
    assert fall_back(promoted, trajectory(1), Assignment("stable", 0.0, OLD)) == Assignment("stable", 0.0, NEW)


def test_stable_is_not_asked_twice_and_never_for_a_version_by_name() -> None:
    for failed in (Assignment("stable", 0.0, OLD), Assignment("pinned", 0.0, NEW)):
        conversation = trajectory(1)
        assert fall_back(ROUTE, conversation, failed) is None
        assert conversation.mixed is False
    assert fall_back(None, trajectory(1), CANARY) is None


def test_another_server_in_a_policys_place_mixes_a_trajectory() -> None:
    conversation = trajectory(1)
    fallback = fall_back_upstream(OTHER, conversation, CANARY)
    assert fallback is not None
    assert claim_of("support", fallback, mixed=conversation.mixed).arm == "mixed"
    assert fall_back_upstream(OTHER, trajectory(1), Assignment("pinned", 0.0, NEW)) is None


def test_after_an_upstream_in_stables_place_stable_is_not_asked_again() -> None:
    assert fall_back(ROUTE, trajectory(1), Assignment("stable", 0.0, OTHER)) is None


def observed(lease: Lease | None, at: Route, now_s: float) -> Lease:
    newer = observe(lease, at, now_s)
    assert newer is not None
    return newer


def test_a_lease_lives_by_observed_growth_alone() -> None:
    lease = observed(None, route(0.1, lease=5), now_s=0.0)
    lease = observed(lease, route(0.1, lease=5), now_s=15.0)
    assert has_lapsed(lease, route(0.1, lease=5), now_s=19.0) is False
    assert has_lapsed(lease, route(0.1, lease=5), now_s=21.0) is True
    lease = observed(lease, route(0.1, lease=6), now_s=21.0)
    assert has_lapsed(lease, route(0.1, lease=6), now_s=40.0) is False


def test_canary_in_the_first_route_that_a_gateway_reads_is_no_sign_of_life() -> None:
    first = route(0.1, lease=5)
    lease = observe(None, first, now_s=0.0, first=True)
    assert has_lapsed(lease, first, now_s=0.0) is True
    lease = observe(lease, first, now_s=2.0)
    assert has_lapsed(lease, first, now_s=2.0) is True
    renewed = route(0.1, lease=6)
    assert has_lapsed(observe(lease, renewed, now_s=4.0), renewed, now_s=4.0) is False


def test_canary_without_renewals_is_overdue_a_lease_after_the_first_read() -> None:
    lease = observe(None, route(0.1, lease=5), now_s=0.0, first=True)
    assert lease is not None
    assert is_overdue(lease, now_s=20.0) is False
    assert is_overdue(lease, now_s=21.0) is True


def test_canary_without_an_observed_lease_has_lapsed() -> None:
    assert has_lapsed(None, route(0.1), now_s=0.0) is True
    assert has_lapsed(None, route(None), now_s=0.0) is False


def test_a_route_on_disk_names_no_canary() -> None:
    kept = without_canary(route(0.5))
    assert kept.canary is None
    assert msgspec.structs.replace(route(0.5), canary=None) == kept


def test_start_names_the_canary_that_the_route_offered_when_arm_was_drawn() -> None:
    offered = route(0.3)
    assert offered.canary is not None
    centres = {"failure": 0.2}
    canary = msgspec.structs.replace(offered.canary, centres=centres, latency_scale_ms=900.0)
    offered = msgspec.structs.replace(offered, canary=canary)
    arm = trajectory(1)
    start = start_of(offered, arm, assign(offered, arm), lapsed=False, at=AT, subject_ref="0" * 16)
    assert (start.rollout_id, start.centres, start.latency_scale_ms) == (canary.rollout_id, centres, 900.0)
    assert (start.policy.weight, start.role, start.trajectory_id) == (0.3, "support", arm.trajectory_id)
    assert start.subject_ref == "0" * 16
    late = trajectory(2)
    unoffered = start_of(offered, late, assign(offered, late, lapsed=True), lapsed=True, at=AT, subject_ref=None)
    assert (unoffered.rollout_id, unoffered.centres, unoffered.policy.weight) == (None, None, 0.0)


def test_each_role_of_a_trajectory_has_its_own_arm() -> None:
    arms = Arms(10 * ARM_BYTES)
    planner, clerk = arms.open("t", "planner"), arms.open("t", "clerk")
    assign(route(1.0), planner)
    assert clerk.assignment is None
    assert assign(route(None), clerk).policy == OLD
    assert (planner.mixed, clerk.mixed) == (False, False)
    assert arms.of_trajectory("t") == [planner, clerk]


def test_only_the_most_recently_used_arms_are_remembered() -> None:
    arms = Arms(2 * ARM_BYTES)
    for name in ("a", "b", "a", "c"):
        arms.open(name, "support")
    assert [name for name in "abc" if arms.of_trajectory(name)] == ["a", "c"]
    assert len(arms) == 2
