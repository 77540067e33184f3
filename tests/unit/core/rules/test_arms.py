"""The arm decision: percentages, stickiness, schedules, names and the time inside an id."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.state import CanaryRoute, Route, ServedPolicy, WeightStep
from ratchet.core.rules.arms import (
    CANARY,
    STABLE,
    ModelName,
    arm_of,
    draw,
    parse_model,
    policy_name,
    started_at,
    weight_at,
)

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
OLD = ServedPolicy(version=1, name="helpdesk@1-aaaaaaaa", digest="a" * 64)
NEW = ServedPolicy(version=2, name="helpdesk@2-bbbbbbbb", digest="b" * 64)


def steps(*weights: float) -> list[WeightStep]:
    return [WeightStep(at=T0 + timedelta(hours=n), weight=weight) for n, weight in enumerate(weights)]


def began(at: datetime, number: int) -> str:
    """The UUIDv7 of a trajectory that began at an instant."""
    milliseconds = int(at.timestamp() * 1000)
    spread = (number * 0x9E3779B97F4A7C15) & ((1 << 62) - 1)
    return str(uuid.UUID(int=(milliseconds << 80) | (7 << 76) | (2 << 62) | spread))


def route(*weights: float, salt: str = "salt-1") -> Route:
    canary = CanaryRoute(rollout_id="r1", policy=NEW, salt=salt, schedule=steps(*weights), lease=1)
    return Route(role="helpdesk", stable=OLD, canary=canary)


@pytest.mark.parametrize("weight", [0.0, 0.05, 0.1, 0.25, 0.5, 0.95, 1.0])
def test_share_of_canary_trajectories_matches_the_weight(weight: float) -> None:
    arms = [arm_of(route(weight), began(T0, number)) for number in range(10_000)]
    share = sum(1 for arm in arms if arm and arm.arm == CANARY) / len(arms)
    assert abs(share - weight) < 0.016


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_a_trajectory_keeps_its_arm_when_the_weight_moves_later(number: int, first: float, later: float) -> None:
    one = began(T0 + timedelta(minutes=30), number)
    assert arm_of(route(first), one) == arm_of(route(first, later), one)


@given(st.uuids(version=4), st.lists(st.floats(0, 1), min_size=1, max_size=4).map(sorted))
def test_arm_of_an_id_without_a_time_stays_at_every_stage(one: uuid.UUID, weights: list[float]) -> None:
    assert arm_of(route(*weights), str(one)) == arm_of(route(weights[0]), str(one))


def test_ids_without_a_time_leave_a_canary_that_is_kept_small() -> None:
    ids = [str(uuid.UUID(int=n * 7919)) for n in range(10_000)]
    arms = [arm_of(route(0.95, 0.1), trajectory_id) for trajectory_id in ids]
    assert abs(sum(1 for arm in arms if arm and arm.arm == CANARY) / len(arms) - 0.1) < 0.016
    assert {arm.weight for arm in arms if arm} == {0.1}


def test_ids_without_a_time_get_the_first_stages_share() -> None:
    ids = [str(uuid.UUID(int=n * 7919)) for n in range(10_000)]
    arms = [arm_of(route(0.1, 0.25, 0.5), one) for one in ids]
    assert abs(sum(1 for arm in arms if arm and arm.arm == CANARY) / len(arms) - 0.1) < 0.016
    assert {arm.weight for arm in arms if arm} == {0.1}


@given(st.uuids(), st.floats(0, 1), st.floats(0, 1))
def test_raising_the_weight_never_takes_a_trajectory_out_of_the_canary(one: uuid.UUID, a: float, b: float) -> None:
    low, high = sorted((a, b))
    at_low, at_high = arm_of(route(low), str(one)), arm_of(route(high), str(one))
    assert at_low is not None
    assert at_high is not None
    assert at_high.arm == CANARY or at_low.arm == STABLE


def test_a_new_salt_draws_anew() -> None:
    ids = [str(uuid.UUID(int=n)) for n in range(2000)]
    both = sum(draw("one", x) < 0.5 and draw("two", x) < 0.5 for x in ids) / len(ids)
    assert abs(both - 0.25) < 0.05


def test_weight_follows_the_schedule() -> None:
    schedule = steps(0.1, 0.25, 0.5)
    assert weight_at(schedule, T0 - timedelta(seconds=1)) == 0.0
    assert weight_at(schedule, T0) == 0.1
    assert weight_at(schedule, T0 + timedelta(minutes=90)) == 0.25
    assert weight_at(list(reversed(schedule)), T0 + timedelta(days=1)) == 0.5


def test_a_trajectory_older_than_the_rollout_stays_stable() -> None:
    decided = arm_of(route(1.0), began(T0 - timedelta(seconds=1), 5))
    assert decided is not None
    assert (decided.arm, decided.weight, decided.policy) == (STABLE, 0.0, OLD)


def test_a_role_without_a_stable_policy_serves_nothing() -> None:
    assert arm_of(Route(role="helpdesk"), str(uuid.UUID(int=1))) is None


def test_without_a_canary_everything_is_stable_at_weight_zero() -> None:
    decided = arm_of(Route(role="helpdesk", stable=OLD), str(uuid.UUID(int=1)))
    assert decided is not None
    assert (decided.arm, decided.weight) == (STABLE, 0.0)


@given(st.integers(1, 999_999_999), st.text("0123456789abcdef", min_size=64, max_size=64))
def test_policy_names_are_read_back(version: int, digest: str) -> None:
    name = policy_name("help-desk_2", version, digest)
    assert parse_model(name) == ModelName("help-desk_2", version, digest[:8])


def test_a_name_with_a_version_is_a_pin() -> None:
    assert parse_model("helpdesk") == ModelName("helpdesk")
    assert parse_model("helpdesk@3") == ModelName("helpdesk", 3)


@pytest.mark.parametrize("name", ["", "Help Desk", "a@", "a@01", "a@x", "a@1-", "a@1-zz", "a@1-12345678 ", "a" * 65])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="neither a role nor"):
        parse_model(name)


def test_the_instant_of_a_uuid7_is_read() -> None:
    example = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F"  # RFC 9562, appendix A.6
    assert started_at(example) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)


def test_foreign_ids_have_no_instant() -> None:
    assert started_at(str(uuid.uuid4())) is None
    assert started_at("not-an-id") is None
    assert started_at("ffffffff-ffff-7fff-bfff-ffffffffffff") is None
