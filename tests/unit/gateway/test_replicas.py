"""Which replica gets a call: circuits that open, half open and close, the least busy one, that of the trajectory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ratchet.gateway.domain.replicas import (
    AGAIN_S,
    BACKOFF_S,
    FAILED_CHECKS,
    FAILURES,
    LONGEST_BACKOFF_S,
    LONGEST_COOLDOWN_S,
    QUIET_S,
    SLACK,
    SLACK_SHARE,
    Circuit,
    Health,
    Replica,
    ReplicaSet,
)


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def replicas(number: int, clock: Clock | None = None, draw: float = 0.5) -> ReplicaSet:
    return ReplicaSet([f"r{n}" for n in range(number)], clock or Clock(), lambda: draw)


def chosen(of: ReplicaSet, near: str = "") -> Replica:
    replica = of.choose(near)
    assert replica is not None
    return replica


def opened(of: ReplicaSet, replica: Replica) -> Replica:
    of.lost(replica)
    assert replica.circuit is Circuit.OPEN
    return replica


def test_call_goes_to_the_replica_with_least_to_do_and_equals_take_turns() -> None:
    three = replicas(3)
    for _ in range(30):
        three.begin(chosen(three))
    assert [one.outstanding for one in three.all] == [10, 10, 10]
    three.end(three.all[1])
    assert chosen(three) is three.all[1]
    idle = replicas(3)
    assert Counter(chosen(idle).name for _ in range(30)) == {"r0": 10, "r1": 10, "r2": 10}


def test_the_calls_of_a_trajectory_meet_one_replica_at_every_gateway() -> None:
    here, there = replicas(3), ReplicaSet(["r2", "r0", "r1"], Clock(), lambda: 0.0)
    for number in range(20):
        near = f"trajectory-{number}"
        assert len({chosen(of, near).name for of in (here, there) for _ in range(3)}) == 1


def test_trajectories_spread_over_the_replicas() -> None:
    spread = Counter(chosen(replicas(4), f"trajectory-{number}").name for number in range(4000))
    assert min(spread.values()) > 850


@pytest.mark.parametrize("others", [0, 1, 40])
def test_trajectory_leaves_its_replica_when_that_has_more_to_do_than_slack(others: int) -> None:
    two = replicas(2)
    own = chosen(two, "trajectory")
    (other,) = [one for one in two.all if one is not own]
    other.outstanding = others
    own.outstanding = others + SLACK + others // SLACK_SHARE
    assert chosen(two, "trajectory") is own
    own.outstanding += 1
    assert chosen(two, "trajectory") is other


def test_trajectories_of_other_replicas_stay_when_one_goes_away() -> None:
    three = replicas(3)
    before = {near: chosen(three, near) for near in map(str, range(60))}
    away = opened(three, three.all[1])
    for near, replica in before.items():
        assert chosen(three, near) is replica or replica is away
        assert chosen(three, near) is not away


def test_circuit_opens_after_failures_in_a_row_without_an_answer_between() -> None:
    two = replicas(2)
    one = two.all[0]
    for _ in range(FAILURES - 1):
        two.failed(one)
    two.answered(one)
    for _ in range(FAILURES - 1):
        two.failed(one)
    assert one.circuit is Circuit.CLOSED
    two.failed(one)
    assert one.circuit is Circuit.OPEN
    assert {chosen(two).name for _ in range(5)} == {"r1"}


def test_a_replica_without_a_connection_gets_no_further_call() -> None:
    two = replicas(2)
    opened(two, two.all[0])
    assert {chosen(two).name for _ in range(5)} == {"r1"}
    opened(two, two.all[1])
    assert two.choose() is None


def test_a_replica_that_is_healthy_again_gets_one_call_which_decides() -> None:
    two = replicas(2)
    one = opened(two, two.all[0])
    two.health_checked(one, Health.WELL)
    assert one.circuit is Circuit.HALF_OPEN
    assert chosen(two) is one
    two.begin(one)
    assert chosen(two) is two.all[1], "one call is under way"
    two.failed(one)
    two.end(one)
    assert one.circuit is Circuit.OPEN
    two.health_checked(one, Health.WELL)
    two.begin(chosen(two))
    two.answered(one)
    two.end(one)
    assert one.circuit is Circuit.CLOSED


def test_a_refusal_ends_a_trial_and_opens_no_closed_circuit() -> None:
    two = replicas(2)
    one = opened(two, two.all[0])
    two.health_checked(one, Health.WELL)
    for replica in two.all:
        for _ in range(FAILURES):
            two.refused(replica)
    assert [replica.circuit for replica in two.all] == [Circuit.OPEN, Circuit.CLOSED]


def test_a_refusal_does_not_take_the_last_replica_from_other_policies() -> None:
    two = replicas(2)
    one, _ = [opened(two, replica) for replica in two.all]
    two.health_checked(one, Health.WELL)
    two.refused(one)
    assert chosen(two) is one


def test_calls_that_fail_after_a_circuit_has_opened_delay_no_health_check() -> None:
    """A replica that is killed fails all its open calls at once."""
    clock = Clock()
    two = replicas(2, clock)
    for fail in (two.failed, two.lost):
        one = opened(two, two.all[0])
        for _ in range(50):
            fail(one)
        clock.now_s += BACKOFF_S
        assert two.due() == [one]
        two.answered(one)


def test_a_trial_that_its_agent_gave_up_leaves_room_for_the_next_one() -> None:
    two = replicas(2)
    one = opened(two, two.all[0])
    two.health_checked(one, Health.WELL)
    two.begin(one)
    two.end(one)
    assert chosen(two) is one


def test_the_only_replica_left_gets_every_call_as_soon_as_it_is_healthy() -> None:
    two = replicas(2)
    for one in two.all:
        opened(two, one)
    two.health_checked(two.all[1], Health.WELL)
    for _ in range(5):
        two.begin(chosen(two))
    assert two.all[1].outstanding == 5


def test_replica_that_asks_for_a_pause_gets_no_calls_meanwhile() -> None:
    clock = Clock()
    two = replicas(2, clock)
    two.cool_down(two.all[0], 7)
    assert {chosen(two).name for _ in range(5)} == {"r1"}
    two.cool_down(two.all[1], 9)
    assert {chosen(two).name for _ in range(5)} == {"r0", "r1"}, "better a busy one than none"
    clock.now_s += 8
    assert {chosen(two).name for _ in range(5)} == {"r0"}
    two.cool_down(two.all[0], 86400)
    clock.now_s += LONGEST_COOLDOWN_S
    assert {chosen(two).name for _ in range(5)} == {"r0", "r1"}


def test_a_call_asks_no_replica_twice() -> None:
    two = replicas(2)
    first = chosen(two)
    second = two.choose(without=[first])
    assert second is not None
    assert second is not first
    assert two.choose(without=[first, second]) is None


def test_replica_that_is_away_is_checked_after_a_growing_bounded_backoff() -> None:
    clock = Clock()
    two = replicas(2, clock)
    one = opened(two, two.all[0])
    two.answered(two.all[1])
    pauses = list[float]()
    for _ in range(8):
        pauses.append(one.check_at_s - clock.now_s)
        clock.now_s = one.check_at_s - 0.01
        two.all[1].answered_s = clock.now_s
        assert two.due() == []
        clock.now_s = one.check_at_s
        assert two.due() == [one]
        two.health_checked(one, Health.GONE)
    assert pauses[0] == pytest.approx(BACKOFF_S)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_BACKOFF_S)


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.75), (1.0, 1.25)])
def test_processes_do_not_check_a_replica_at_the_same_moment(draw: float, share: float) -> None:
    clock = Clock()
    two = replicas(2, clock, draw)
    assert opened(two, two.all[0]).check_at_s - clock.now_s == pytest.approx(BACKOFF_S * share)


def test_a_replica_that_fails_on_every_trial_is_tried_less_and_less_often() -> None:
    clock = Clock()
    two = replicas(2, clock)
    one = opened(two, two.all[0])
    tried = list[float]()
    for _ in range(8):
        clock.now_s = one.check_at_s
        two.health_checked(one, Health.WELL)
        two.begin(one)
        two.failed(one)
        two.end(one)
        tried.append(clock.now_s)
    assert tried[-1] - tried[-2] == pytest.approx(LONGEST_BACKOFF_S)


def test_replica_with_calls_is_checked_only_after_a_long_silence() -> None:
    clock = Clock()
    two = replicas(2, clock)
    assert two.due() == []
    clock.now_s += QUIET_S
    two.answered(two.all[0])
    assert two.due() == [two.all[1]]
    two.health_checked(two.all[1], Health.WELL)
    assert two.due() == []


def test_a_health_check_that_did_not_reach_a_replica_changes_no_circuit() -> None:
    """The gateway had no file left for a connection."""
    clock = Clock()
    two = replicas(2, clock)
    opened(two, two.all[0])
    clock.now_s += QUIET_S
    assert two.due() == list(two.all)
    for one in two.all:
        for _ in range(FAILED_CHECKS):
            two.health_checked(one, Health.UNKNOWN)
    assert [one.circuit for one in two.all] == [Circuit.OPEN, Circuit.CLOSED]
    assert [one.failed_checks for one in two.all] == [0, 0]
    assert two.due() == two.may_check([]) == [], "it would find the same again at once"
    clock.now_s += BACKOFF_S
    assert two.due() == list(two.all)


def test_silent_replica_gets_no_more_calls_after_some_failed_health_checks() -> None:
    clock = Clock()
    two = replicas(2, clock)
    one = two.all[0]
    for _ in range(FAILED_CHECKS):
        assert one.circuit is Circuit.CLOSED
        two.health_checked(one, Health.SILENT)
    assert one.circuit is Circuit.OPEN


def test_the_last_replica_keeps_its_calls_while_it_accepts_connections() -> None:
    alone = replicas(1)
    for _ in range(5):
        alone.health_checked(alone.all[0], Health.SILENT)
    assert alone.choose() is alone.all[0]
    assert alone.all[0].is_away, "an operator should know"
    alone.health_checked(alone.all[0], Health.GONE)
    assert alone.choose() is None


def test_calls_that_meet_all_replicas_away_do_not_check_again_and_again() -> None:
    clock = Clock()
    two = replicas(2, clock)
    for one in two.all:
        opened(two, one)
    assert two.may_check([]) == list(two.all)
    two.health_checked(two.all[0], Health.GONE)
    assert two.may_check([]) == [two.all[1]]
    assert two.may_check([two.all[1]]) == []
    clock.now_s += AGAIN_S
    assert two.may_check([]) == list(two.all)


WHICH = st.integers(0, 9)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order: calls go where they may, and every replica comes back."""

    @initialize(number=st.integers(1, 4))
    def start(self, number: int) -> None:
        self.clock = Clock()
        self.of = replicas(number, self.clock)
        self.calls = list[Replica]()

    def replica(self, which: int) -> Replica:
        return self.of.all[which % len(self.of.all)]

    @rule(which=WHICH)
    def call(self, which: int) -> None:
        near = f"t{which}" if which % 2 else ""
        got = self.of.choose(near)
        if got is None:
            assert all(one.circuit is Circuit.OPEN for one in self.of.all)
            return
        closed = [one for one in self.of.all if one.circuit is Circuit.CLOSED]
        assert got.circuit is not Circuit.OPEN
        assert not (got.circuit is Circuit.HALF_OPEN and got.on_trial and closed)
        if got in closed and all(one.cooldown_until_s <= self.clock.now_s for one in closed):
            least = min(one.outstanding for one in closed)
            assert got.outstanding <= least + (SLACK + least // SLACK_SHARE if near else 0)
        self.of.begin(got)
        self.calls.append(got)

    @rule(which=WHICH, end=st.sampled_from(["answered", "failed", "refused", "gave_up"]))
    def end(self, which: int, end: str) -> None:
        if not self.calls:
            return
        replica = self.calls.pop(which % len(self.calls))
        if end == "answered":
            self.of.answered(replica)
        elif end == "failed":
            self.of.failed(replica)
        elif end == "refused":
            self.of.refused(replica)
        self.of.end(replica)

    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        self.of.lost(self.replica(which))

    @rule(which=WHICH, health=st.sampled_from(Health))
    def check_health(self, which: int, health: Health) -> None:
        self.of.health_checked(self.replica(which), health)

    @rule(which=WHICH, wait_s=st.integers(0, 100))
    def cool_down(self, which: int, wait_s: int) -> None:
        self.of.cool_down(self.replica(which), wait_s)

    @rule(wait_s=st.integers(0, 20))
    def wait(self, wait_s: int) -> None:
        self.clock.now_s += wait_s

    @invariant()
    def counts_are_right_and_no_wait_is_long(self) -> None:
        for one in self.of.all:
            assert one.outstanding == self.calls.count(one)
            assert one.check_at_s <= self.clock.now_s + LONGEST_BACKOFF_S * 1.25
            assert one.cooldown_until_s <= self.clock.now_s + LONGEST_COOLDOWN_S

    def teardown(self) -> None:
        for one in self.calls:
            self.of.end(one)
        self.clock.now_s += QUIET_S + LONGEST_BACKOFF_S * 1.25 + LONGEST_COOLDOWN_S
        for one in self.of.due():
            self.of.health_checked(one, Health.WELL)
        for _ in self.of.all:
            replica = chosen(self.of)
            self.of.begin(replica)
            self.of.answered(replica)
            self.of.end(replica)
        assert {one.circuit for one in self.of.all} == {Circuit.CLOSED}


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)
