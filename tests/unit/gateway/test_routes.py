"""Which policy answers: stickiness, percentages, leases and rollbacks."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.contract import named_id
from ratchet.contract.state import CanaryRoute, PolicyVersion, Route, ServedPolicy, WeightStep
from ratchet.gateway.domain.arms import ARM_BYTES, Arm, Arms
from ratchet.gateway.domain.lease import Lease, has_lapsed, is_overdue, observe
from ratchet.gateway.domain.routes import assign, claim_of, pin, start_of, without_canary
from ratchet.rules.arms import Assignment
from tests.support.messages import AT

OLD = ServedPolicy(version=1, name="support@1-aaaaaaaa", digest="a" * 64)
NEW = ServedPolicy(version=2, name="support@2-bbbbbbbb", digest="b" * 64)


def route(weight: float | None, *, stable: ServedPolicy = OLD, lease: int = 1) -> Route:
    steps = [WeightStep(at=AT, weight=weight or 0.0)]
    canary = CanaryRoute(rollout_id=named_id("rollout"), policy=NEW, salt="s", schedule=steps, lease=lease)
    return Route(role="support", stable=stable, canary=canary if weight is not None else None)


def trajectory(number: int) -> Arm:
    return Arm(named_id("trajectory", number), "support")


def assigned(to: Route, talk: Arm, *, lapsed: bool = False) -> Assignment:
    found = assign(to, talk, lapsed=lapsed)
    assert found is not None
    return found


@pytest.mark.parametrize("weight", [0.1, 0.25, 0.5, 1.0])
def test_the_share_of_canary_trajectories_matches_the_weight(weight: float) -> None:
    arms = [assigned(route(weight), trajectory(n)).arm for n in range(4000)]
    assert arms.count("canary") / 4000 == pytest.approx(weight, abs=0.025)


def test_a_trajectory_keeps_its_policy_while_the_weight_moves_and_when_the_canary_is_promoted() -> None:
    for number in range(50):
        talk = trajectory(number)
        first = assigned(route(0.3), talk)
        assert assigned(route(1.0), talk) == first
        promoted = Route(role="support", stable=NEW, previous=OLD)
        assert assigned(promoted, talk) == first
        assert talk.mixed is False


def test_a_rollback_moves_a_canary_trajectory_to_stable_and_marks_it_mixed() -> None:
    talk = trajectory(1)
    assert assigned(route(1.0), talk).policy == NEW
    moved = assigned(route(None), talk)
    assert (moved.policy, moved.arm, moved.weight) == (OLD, "stable", 1.0)
    assert claim_of("support", moved, mixed=talk.mixed).arm == "mixed"


def test_a_lapsed_lease_moves_canary_trajectories_to_stable_for_good_and_leaves_the_others_alone() -> None:
    canary, stable = trajectory(1), trajectory(2)
    assert assigned(route(1.0), canary).policy == NEW
    assert assigned(route(1.0), canary, lapsed=True).policy == OLD
    assert assigned(route(1.0), canary).policy == OLD
    assert canary.mixed is True
    assert assigned(route(0.0), stable).policy == OLD
    assert assigned(route(0.0), stable, lapsed=True).policy == OLD
    assert stable.mixed is False


def test_a_trajectory_that_begins_while_the_lease_has_lapsed_was_offered_no_canary() -> None:
    talk = trajectory(1)
    first = assigned(route(1.0), talk, lapsed=True)
    assert (first.policy, first.arm, first.weight) == (OLD, "stable", 0.0)
    assert assigned(route(1.0), talk) == first
    assert talk.mixed is False


def test_a_role_without_a_stable_policy_serves_nothing() -> None:
    assert assign(Route(role="support"), trajectory(1), lapsed=False) is None


def test_a_pinned_version_is_served_and_mixes_a_trajectory_that_met_another_one() -> None:
    version = PolicyVersion(
        role="support",
        version=2,
        name=NEW.name,
        digest=NEW.digest,
        uri="s3://b/p.json",
        kind="adapter",
        base_model="m",
        created_at=AT,
        stage="registered",
    )
    fresh = trajectory(1)
    assert claim_of("support", pin(version, fresh), mixed=fresh.mixed).arm == "pinned"
    routed = trajectory(2)
    assigned(route(None), routed)
    pin(version, routed)
    assert routed.mixed is True


def looked(lease: Lease | None, at: Route, now_s: float) -> Lease:
    found = observe(lease, at, now_s)
    assert found is not None
    return found


def test_a_lease_lives_by_observed_growth_alone() -> None:
    lease = looked(None, route(0.1, lease=5), now_s=0.0)
    lease = looked(lease, route(0.1, lease=5), now_s=15.0)
    assert has_lapsed(lease, route(0.1, lease=5), now_s=19.0) is False
    assert has_lapsed(lease, route(0.1, lease=5), now_s=21.0) is True
    lease = looked(lease, route(0.1, lease=6), now_s=21.0)
    assert has_lapsed(lease, route(0.1, lease=6), now_s=40.0) is False


def test_what_the_first_look_at_a_route_shows_of_a_canary_is_no_sign_of_life() -> None:
    found = route(0.1, lease=5)
    lease = observe(None, found, now_s=0.0, first=True)
    assert has_lapsed(lease, found, now_s=0.0) is True
    lease = observe(lease, found, now_s=2.0)
    assert has_lapsed(lease, found, now_s=2.0) is True
    renewed = route(0.1, lease=6)
    assert has_lapsed(observe(lease, renewed, now_s=4.0), renewed, now_s=4.0) is False


def test_a_canary_that_nobody_renews_is_overdue_a_whole_lease_after_the_first_look() -> None:
    lease = observe(None, route(0.1, lease=5), now_s=0.0, first=True)
    assert lease is not None
    assert is_overdue(lease, now_s=20.0) is False
    assert is_overdue(lease, now_s=21.0) is True


def test_a_canary_whose_lease_was_never_seen_has_lapsed_and_without_a_canary_nothing_lapses() -> None:
    assert has_lapsed(None, route(0.1), now_s=0.0) is True
    assert has_lapsed(None, route(None), now_s=0.0) is False


def test_what_is_kept_on_disk_names_no_canary() -> None:
    kept = without_canary(route(0.5))
    assert kept.canary is None
    assert msgspec.structs.replace(route(0.5), canary=None) == kept


def test_a_start_says_what_was_on_offer_when_the_arm_was_drawn() -> None:
    offered = route(0.3)
    assert offered.canary is not None
    centres = {"failure": 0.2}
    canary = msgspec.structs.replace(offered.canary, centres=centres, latency_scale_ms=900.0)
    offered = msgspec.structs.replace(offered, canary=canary)
    arm = trajectory(1)
    start = start_of(offered, arm, assigned(offered, arm), lapsed=False, at=AT)
    assert (start.rollout_id, start.centres, start.latency_scale_ms) == (canary.rollout_id, centres, 900.0)
    assert (start.policy.weight, start.role, start.trajectory_id) == (0.3, "support", arm.trajectory_id)
    late = trajectory(2)
    unoffered = start_of(offered, late, assigned(offered, late, lapsed=True), lapsed=True, at=AT)
    assert (unoffered.rollout_id, unoffered.centres, unoffered.policy.weight) == (None, None, 0.0)


def test_each_role_of_a_trajectory_has_its_own_arm() -> None:
    arms = Arms(10 * ARM_BYTES)
    planner, clerk = arms.open("t", "planner"), arms.open("t", "clerk")
    assigned(route(1.0), planner)
    assert clerk.assignment is None
    assert assigned(route(None), clerk).policy == OLD
    assert (planner.mixed, clerk.mixed) == (False, False)
    assert arms.of("t") == [planner, clerk]


def test_only_the_most_recently_used_arms_are_remembered() -> None:
    arms = Arms(2 * ARM_BYTES)
    for name in ("a", "b", "a", "c"):
        arms.open(name, "support")
    assert [name for name in "abc" if arms.of(name)] == ["a", "c"]
    assert len(arms) == 2
