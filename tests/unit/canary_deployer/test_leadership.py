"""Several deployers: one leads, a standby takes over, and a frozen leader that wakes up writes nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus, FakeClock
from ratchet.canary_deployer.app import ELECTION
from ratchet.canary_deployer.controller import RolloutController
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.operator_acts import OperatorActs
from ratchet.core.contract import ModelRollout
from ratchet.core.contract.state import POLICIES, ROLLOUTS, PolicyVersion, Route
from ratchet.core.errors import Conflict
from ratchet.core.service.leadership import Leader, Leadership, NotLeading, WhileLeading
from tests.support.canary_world import ROLE, CanaryWorld, served
from tests.support.fake_bus import fake_bus
from tests.support.running import running

TAKEOVER_S = 5.0


def deployer(bus: FakeBus, clock: FakeClock, name: str) -> Leadership:
    """A deployer's part in the election."""
    return Leadership(ELECTION, Bucket(bus, ROLLOUTS, Leader), f"http://{name}:8083", TAKEOVER_S, clock.monotonic)


async def test_the_first_leads_and_a_standby_names_it() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    await first.beat()
    await second.beat()
    assert (first.leading, second.leading) == (True, False)
    assert (await first.check(), await second.check()) == (None, None)
    with pytest.raises(NotLeading, match="send it to the one that leads, http://first:8083"):
        _ = second.term


async def test_a_standby_takes_over_when_it_saw_no_renewal_for_long_enough() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    await first.beat()
    for _ in range(20):  # renewed: no takeover, however long
        clock.advance(1)
        await first.beat()
        await second.beat()
    assert first.leading
    clock.advance(TAKEOVER_S - 0.1)
    await second.beat()
    assert not second.leading
    clock.advance(0.2)
    await second.beat()
    assert (second.leading, second.term) == (True, 2)


async def test_who_cannot_renew_the_lead_is_not_ready() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    await first.beat()
    await second.beat()
    clock.advance(TAKEOVER_S + 1)  # a full bucket refuses the writes of both
    assert [await each.check() for each in (first, second)] == ["no deployer leads for now"] * 2


async def test_one_that_is_started_anew_sends_no_caller_to_itself() -> None:
    bus, clock = fake_bus(), FakeClock()
    await deployer(bus, clock, "first").beat()
    again = deployer(bus, clock, "first")
    await again.beat()
    with pytest.raises(NotLeading, match="no deployer leads for now: try again in a few seconds"):
        _ = again.term


async def test_leader_that_could_not_renew_steps_down_before_standby_takes_over() -> None:
    bus, clock = fake_bus(), FakeClock()
    first = deployer(bus, clock, "first")
    await first.beat()
    clock.advance(0.9 * TAKEOVER_S)
    assert not first.leading
    with pytest.raises(NotLeading):
        await first.confirm()


async def test_a_wall_clock_that_is_set_changes_no_leader() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    for jump in (0, 86400, -2 * 86400):
        clock.set_by(jump)
        await first.beat()
        await second.beat()
    assert (first.leading, second.leading) == (True, False)


async def test_only_one_of_two_standbys_wins() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, *standbys = (deployer(bus, clock, name) for name in ("first", "second", "third"))
    await first.beat()
    for one in standbys:
        await one.beat()
    clock.advance(TAKEOVER_S)
    entry = await Bucket(bus, ROLLOUTS, Leader).get(ELECTION.key)
    assert entry is not None
    await standbys[0].beat()
    with pytest.raises(Conflict):  # it read before the other wrote
        await Bucket(bus, ROLLOUTS, Leader).update(ELECTION.key, entry.value, entry.revision)
    await standbys[1].beat()
    assert [one.leading for one in standbys] == [True, False]


async def test_a_key_that_cannot_be_read_is_replaced_and_the_next_term_is_higher() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    for _ in range(5):
        await first.beat()
    await Bucket(bus, ROLLOUTS, msgspec.Raw).put(ELECTION.key, msgspec.Raw(b"\xff"))
    with pytest.raises(NotLeading):
        await first.confirm()
    for one in (first, second):
        await one.beat()
    assert (first.leading, second.leading) == (False, False)
    clock.advance(TAKEOVER_S)
    await second.beat()
    assert second.leading
    assert second.term > 1


async def test_a_clean_stop_gives_the_lead_back_at_once() -> None:
    bus, clock = fake_bus(), FakeClock()
    first, second = deployer(bus, clock, "first"), deployer(bus, clock, "second")
    async with running(first):
        await first.gained.wait()
    await second.beat()
    assert second.leading


async def test_a_component_ends_with_the_lead_and_begins_anew_with_the_next_term() -> None:
    bus, clock = fake_bus(), FakeClock()
    mine, other = deployer(bus, clock, "mine"), deployer(bus, clock, "other")
    workers = [Worker(), Worker()]
    coming, ended = iter(workers), list[list[bool]]()

    def note() -> None:
        ended.append([worker.ended.is_set() for worker in workers])

    async with running(WhileLeading(mine, lambda: next(coming), note)):
        await mine.beat()
        await workers[0].begun.wait()
        await other.beat()
        clock.advance(TAKEOVER_S)
        await other.beat()
        await mine.beat()
        await workers[0].ended.wait()
        clock.advance(TAKEOVER_S)
        await mine.beat()
        await workers[1].begun.wait()
        assert ended == [[True, False]]
    assert ended == [[True, False], [True, True]]


class Worker:
    """A component that notes when it works."""

    def __init__(self) -> None:
        self.begun, self.ended, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        self.begun.set()
        await self._stopping.wait()
        self.ended.set()

    async def stop(self) -> None:
        self._stopping.set()


class Pair:
    """Two deployers of one role; what the first writes can be held up between its question and its write."""

    def __init__(self, world: CanaryWorld) -> None:
        self.world = world
        self.leads = [deployer(world.bus, world.clock, name) for name in ("first", "second")]
        self.controllers = [self._controller(lead) for lead in self.leads]

    @property
    def operators(self) -> list[OperatorActs]:
        """What takes the orders of operators, for each of the two."""
        return [controller.operators for controller in self.controllers]

    def _controller(self, lead: Leadership) -> RolloutController:
        bus = self.world.bus
        policies = KvPolicies(Bucket(bus, POLICIES, Route), Bucket(bus, POLICIES, PolicyVersion), lead)
        return self.world.new_controller(policies=policies, lead=lead, longest_tick_s=15.0)

    async def take_over(self) -> None:
        """The first is frozen, the second takes over."""
        await self.leads[1].beat()
        self.world.clock.advance(TAKEOVER_S)
        await self.leads[1].beat()
        assert self.leads[1].leading


async def pair() -> Pair:
    """A canary that runs, driven by the first of two deployers."""
    world = await CanaryWorld().with_policies(1, 2)
    both = Pair(world)
    await both.leads[0].beat()
    world.controller = both.controllers[0]
    await world.until("running")
    return both


async def test_new_leader_claims_the_record_before_it_acts_and_renews_the_lease() -> None:
    both = await pair()
    before = (await both.world.route()).canary
    await both.take_over()
    await both.controllers[1].step()
    assert (await both.world.rollout()).term == 2
    after = (await both.world.route()).canary
    assert before is not None
    assert after is not None
    assert after.lease == before.lease + 1


async def test_a_frozen_leader_that_wakes_up_writes_nothing() -> None:
    both = await pair()
    await both.take_over()
    await both.operators[1].act(Act.ROLLBACK, Order("bob", "from the new leader"))
    writes = both.world.bus.faults.writes
    for _ in range(3):
        with pytest.raises(NotLeading):
            await both.controllers[0].step()
        with pytest.raises(NotLeading):
            await both.operators[0].act(Act.PROMOTE, Order("ann", "to the old one", override=True))
    assert both.world.bus.faults.writes == writes
    assert (await both.world.route()).stable == served(1)
    assert (await both.world.route()).canary is None


@pytest.mark.parametrize("held_up", range(1, 9))
async def test_write_that_was_delayed_beyond_the_takeover_changes_nothing_in_end(held_up: int) -> None:
    """The first deployer freezes between `confirm` and its n-th write, and wakes up after the second has decided."""
    both = await pair()
    frozen = both.leads[0]
    confirmed = 0
    confirm = frozen.confirm

    async def freezing() -> None:
        nonlocal confirmed
        await confirm()
        confirmed += 1
        if confirmed == held_up:
            await both.take_over()
            await both.operators[1].act(Act.ROLLBACK, Order("bob", "the new leader's"))

    frozen.confirm = freezing  # type: ignore[method-assign]
    with pytest.raises((NotLeading, Conflict)):
        await four_pauses(both.operators[0])
    route = await both.world.route()
    assert (route.stable, route.canary) == (served(1), None)
    assert await both.world.stage_of(2) == "rolled_back"
    record = await both.world.rollout()
    assert (record.state, record.term, record.last_hash) == ("rolled_back", 2, route.audit_hash)
    verdicts = [one.verdict for one in both.world.bus.published(ModelRollout)]
    assert verdicts[-1] == "roll_back"
    assert len({one.sequence for one in both.world.bus.published(ModelRollout)}) == len(verdicts)


async def four_pauses(operators: OperatorActs) -> None:
    """Enough decisions for every write that there is."""
    for _ in range(4):
        await operators.act(Act.PAUSE, Order("ann", "the old leader's"))
        await operators.act(Act.RESUME, Order("ann", "the old leader's"))


async def test_a_policy_is_registered_by_the_leader_only() -> None:
    world = await CanaryWorld().with_policies(1)
    world.lead.leading = False
    with pytest.raises(NotLeading):
        await world.register_next()
    assert [one.version for one in await world.policies.versions(ROLE)] == [1]
