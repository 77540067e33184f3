"""A kill between any two writes, a broker that is away, and records, chunks and entries that are lost or damaged."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import Killed
from ratchet.canary_deployer.domain.audit import first_break
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import NEEDS_APPROVAL, Rollout
from ratchet.canary_deployer.domain.rollout_statistics import Statistics, Trail
from ratchet.canary_deployer.domain.rules import Stage
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.core.contract import ModelDeployed, ModelRollout
from ratchet.core.contract.state import POLICIES, ROLLOUT_CHUNKS, ROLLOUTS, PolicyVersion
from ratchet.core.errors import BusUnavailable, Conflict, NotFound
from tests.support.canary_world import (
    ROLE,
    CanaryWorld,
    policy,
    quick_rules,
    served,
)


def shown(rollout: Rollout) -> Statistics:
    """The statistics, without the names of the chunks, and without the trail: its moments are those of the looks."""
    return msgspec.structs.replace(rollout.statistics, chunks=(), trail=Trail())


async def test_a_restart_resumes_the_statistics() -> None:
    rules = quick_rules(stages=(Stage(0.4, 1e9, 5),))  # one weight: a restart makes a stage longer, never the order
    worlds = [await CanaryWorld(rules).with_policies(1, 2) for _ in range(2)]
    for number, world in enumerate(worlds):
        await world.until("running")
        for round_ in range(6):
            world.clock.advance(61)
            await world.play(30, 0.8, 0.8)
            if number == 1 and round_ % 2:
                world.restart()
        await world.controller.step()
    plain, restarted = [await world.rollout() for world in worlds]
    assert restarted.stage == plain.stage
    assert shown(restarted) == shown(plain)
    assert restarted.statistics.stable.trajectories > 50


async def test_statistics_folded_after_the_last_save_are_folded_again_after_kill() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(30, 0.8, 0.8)
    await world.play(30, 0.8, 0.8)
    seen = await world.controller.current()
    stored = await world.rollout()
    assert seen is not None
    assert stored.reward_seq < seen.reward_seq
    world.restart()
    world.clock.advance(2)
    await world.controller.step()
    again = await world.rollout()
    assert (shown(again), again.reward_seq) == (shown(seen), seen.reward_seq)


async def test_the_last_statistics_are_saved_although_nothing_follows() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(10, 0.8, 0.8)
    assert (await world.rollout()).statistics.stable.trajectories == 0
    world.clock.advance(2)
    await world.controller.step()
    saved = await world.rollout()
    assert saved.statistics.stable.trajectories > 0
    writes = world.bus.faults.writes
    world.clock.advance(2)
    await world.controller.step()
    assert world.bus.faults.writes == writes


SHORT = quick_rules(stages=(Stage(0.4, 60, 5), Stage(0.5, 60, 5)))


async def scenario(world: CanaryWorld) -> None:
    """A rollout that advances by itself and is then promoted by an operator; goes on where it was cut off."""
    await world.until("running", "promoted")
    if world.played == 0:
        await world.play(25, 0.8, 0.8)
    for _ in range(4):
        rollout = await world.rollout()
        if rollout.active and (rollout.stage == 0 or rollout.outbox):
            world.clock.advance(61)
            await world.controller.step()
    if (await world.rollout()).active:
        await world.operators.act(Act.PROMOTE, Order("ann", "fine", override=True))
    await world.until("promoted")


@pytest.mark.parametrize("moment", ["before", "half done", "after"])
async def test_a_kill_at_any_write_changes_nothing_in_the_end(moment: str) -> None:
    plain = await CanaryWorld(SHORT).with_policies(1, 2)
    first = plain.bus.faults.writes
    await scenario(plain)
    writes = plain.bus.faults.writes
    assert writes - first > 15
    for at in range(first + 1, writes + 1):
        world = await CanaryWorld(SHORT).with_policies(1, 2)
        world.bus.faults.at, world.bus.faults.after_effect = at, moment == "after"
        world.bus.faults.half_done = moment == "half done"
        with pytest.raises(Killed):
            await scenario(world)
        world.restart()
        await scenario(world)
        rollout, expected = await world.rollout(), await plain.rollout()
        assert (rollout.state, rollout.outbox, shown(rollout)) == (expected.state, (), shown(expected))
        assert (await world.route()).stable == served(2)
        assert [await world.stage_of(v) for v in (1, 2)] == ["archived", "stable"]
        decisions = world.bus.published(ModelRollout)
        assert [d.verdict for d in decisions] == ["start", "advance", "promote"]
        assert [d.state for d in world.bus.published(ModelDeployed)] == ["canary", "canary", "promoted"]
        assert first_break(decisions) is None


async def test_broker_that_did_not_answer_delays_a_decision_and_loses_nothing() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    world.clock.advance(61)
    chunks, audited = 2, 1  # 200 trajectories
    world.bus.unavailable_at(world.bus.faults.writes + chunks + audited + 2)
    world.bus.faults.after_effect = True
    with pytest.raises(BusUnavailable):
        await world.play(200, 0.8, 0.8)
    rollout = await world.rollout()
    assert (rollout.stage, len(rollout.outbox)) == (1, 2)
    await world.controller.step()
    assert (await world.rollout()).outbox == ()
    assert [d.verdict for d in world.bus.published(ModelRollout)] == ["start", "advance"]


async def test_second_deployer_on_same_role_reads_again_instead_of_overwriting() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    other = world.new_controller()
    await other.operators.act(Act.ROLLBACK, Order("bob", "from the other one"))
    with pytest.raises(Conflict):
        await world.operators.act(Act.PROMOTE, Order("ann", "at the same time", override=True))
    current = await world.controller.current()
    assert current is not None
    assert (current.state, (await world.route()).stable) == ("rolled_back", served(1))


async def with_lost_chunks(in_their_place: bytes | None = None) -> CanaryWorld:
    """A canary whose trajectories were deleted from the bucket, or replaced, before a deployer that starts anew."""
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.play(40, 0.7, 0.7)
    world.clock.advance(10)
    await world.controller.step()
    chunks = Bucket(world.bus, ROLLOUT_CHUNKS, Chunk)
    names = await chunks.keys()
    assert names
    for name in names:
        await chunks.delete(name)
        if in_their_place is not None:
            await Bucket(world.bus, ROLLOUT_CHUNKS, msgspec.Raw).put(name, msgspec.Raw(in_their_place))
    world.restart()
    return world


async def test_rollout_whose_trajectories_are_gone_ends_unproven() -> None:
    world = await with_lost_chunks()
    rollout = await world.until("rolled_back")
    assert "trajectories of the rollout are gone" in rollout.reason
    assert ((await world.route()).stable, (await world.route()).canary) == (served(1), None)


async def test_trajectories_that_cannot_be_read_count_as_gone() -> None:
    world = await with_lost_chunks(b'{"of": "another version"}')
    assert (await world.operators.act(Act.ROLLBACK, Order("ann", "now"))).state == "rolled_back"
    world = await with_lost_chunks(b"\xff")
    assert "trajectories of the rollout cannot be read" in (await world.until("rolled_back")).reason


@pytest.mark.parametrize("act", [Act.ROLLBACK, Act.PAUSE])
async def test_an_operator_need_not_wait_for_trajectories_that_are_gone(act: Act) -> None:
    world = await with_lost_chunks()
    done = await world.operators.act(act, Order("ann", "now"))
    assert done.state == {Act.ROLLBACK: "rolled_back", Act.PAUSE: "paused"}[act]
    await world.until("rolled_back")


async def of_an_earlier_version(world: CanaryWorld) -> None:
    """The record as a version wrote it whose statistics looked otherwise, and a deployer that starts anew."""
    records = Bucket(world.bus, ROLLOUTS, msgspec.Raw)
    members = msgspec.json.decode(msgspec.json.encode(await world.rollout()))
    statistics = {"pending": {"a trajectory": ["stable", 0.1]}, "stable": {"mean": 0.5}}
    await records.put(ROLE, msgspec.Raw(msgspec.json.encode({**members, "statistics": statistics, "looks": [1, 2]})))
    world.restart()


@pytest.mark.parametrize("act", [None, Act.ROLLBACK])
async def test_a_running_rollout_of_an_earlier_version_is_rolled_back(
    act: Act | None,
) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await of_an_earlier_version(world)
    if act is not None:
        await world.operators.act(act, Order("ann", "now"))
    else:
        await world.controller.step()
    ended = await world.until("rolled_back")
    assert ended.reason == "now" if act else ended.reason.startswith("statistics of the rollout cannot be read")
    assert (await world.route()).canary is None
    assert first_break(world.bus.published(ModelRollout)) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"roles_kept_small": frozenset({ROLE})},
        {"roles_that_lose_users": frozenset({ROLE})},
        {"metrics": ("failure", "latency")},
        None,
    ],
    ids=["kept small", "first alone", "as many metrics", "an earlier version's"],
)
async def test_a_state_of_other_tests_ends_its_canary(settings: dict[str, object] | None) -> None:
    world = CanaryWorld(quick_rules(metrics=("failure", "reward")))
    world.traffic.subjects = ("0" * 16, "1" * 16) * 20
    await (await world.with_policies(1, 2)).until("running")
    for _ in range(5):
        world.clock.advance(6)
        await world.play(40, 0.7, 0.7)
    if settings is None:
        members = msgspec.json.decode(msgspec.json.encode(await world.rollout()))
        for added in ("layout", "unit_wealth"):
            del members["statistics"]["kept"][added]
        await Bucket(world.bus, ROLLOUTS, msgspec.Raw).put(ROLE, msgspec.Raw(msgspec.json.encode(members)))
    else:
        world.rules = quick_rules(**{"metrics": ("failure", "reward"), **settings})
    world.restart()
    await world.controller.step()
    ended = await world.until("rolled_back")
    assert ended.reason.startswith("its statistics are those of other tests")
    assert (await world.route()).canary is None


async def test_record_of_an_earlier_version_blocks_no_later_rollout() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    world.gates["approval"].outcome = NEEDS_APPROVAL
    await world.until("awaiting_approval")
    await of_an_earlier_version(world)
    assert (await world.operators.act(Act.APPROVE, Order("ann", "go"))).state == "running"
    await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    await of_an_earlier_version(world)
    await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
    await world.controller.step()
    assert (await world.until("awaiting_approval")).candidate == served(3)
    assert (await world.operators.act(Act.REVERT, Order("ann", "back"))).candidate == served(1)
    assert first_break(world.bus.published(ModelRollout)) is None


async def test_a_policy_that_cannot_be_read_keeps_no_other_from_its_rollout() -> None:
    world = await CanaryWorld().with_policies(1, 3)
    await Bucket(world.bus, POLICIES, msgspec.Raw).put(f"{ROLE}.2", msgspec.Raw(b"{"))
    await Bucket(world.bus, POLICIES, msgspec.Raw).put(f"{ROLE}.notes", msgspec.Raw(b"{}"))
    assert (await world.until("running")).candidate == served(3)
    await Bucket(world.bus, POLICIES, msgspec.Raw).put(f"{ROLE}.4", msgspec.Raw(b"null"))
    new, is_new = await world.register_next()
    assert (new.version, is_new) == (5, True)


async def lose_entry(world: CanaryWorld, version: int, left: bytes | None) -> None:
    """Delete a policy's entry, or leave other bytes in its place."""
    bucket = Bucket(world.bus, POLICIES, msgspec.Raw)
    await bucket.delete(f"{ROLE}.{version}")
    if left is not None:
        await bucket.put(f"{ROLE}.{version}", msgspec.Raw(left))


@pytest.mark.parametrize("left", [None, b"{"], ids=["gone", "unreadable"])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_canary_ends_whatever_became_of_its_policies_entries(version: int, left: bytes | None) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await lose_entry(world, version, left)
    world.restart()
    done = await world.operators.act(Act.ROLLBACK, Order("ann", "now"))
    assert (done.state, done.outbox, (await world.route()).canary) == ("rolled_back", (), None)


async def test_canary_whose_entry_is_gone_is_rolled_back_by_the_evidence() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await lose_entry(world, 2, None)
    with pytest.raises(NotFound):
        await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    assert (await world.route()).stable == served(1)
    assert await world.play_to_the_end(stable=0.9, canary=0.1) == "rolled_back"


async def test_a_promotion_is_undone_whatever_became_of_the_policies_entries() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.PROMOTE, Order("ann", "now", override=True))
    for version in (1, 2):
        await lose_entry(world, version, None)
    done = await world.operators.act(Act.REVERT, Order("ann", "back"))
    assert (done.state, done.outbox, (await world.route()).stable) == ("reverted", (), served(1))


async def set_back(world: CanaryWorld, old: bytes) -> None:
    """An older copy of the record takes its place, while the deployer is away."""
    await Bucket(world.bus, ROLLOUTS, msgspec.Raw).put(ROLE, msgspec.Raw(old))
    world.restart()


async def copy_of_record(world: CanaryWorld) -> bytes:
    entry = await Bucket(world.bus, ROLLOUTS, msgspec.Raw).get(ROLE)
    assert entry is not None
    return bytes(entry.value)


@pytest.mark.parametrize("act", [Act.PAUSE, Act.ROLLBACK])
async def test_record_that_is_set_back_gives_no_canary_its_traffic_again(act: Act) -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    old = await copy_of_record(world)
    await world.operators.act(act, Order("ann", "it looks bad"))
    await set_back(world, old)
    ended = await world.until("rolled_back")
    assert ended.reason.startswith("its record was set back: it lacks the decision to ")
    assert ((await world.route()).stable, (await world.route()).canary) == (served(1), None)
    published = world.bus.published(ModelRollout)
    assert ([decision.sequence for decision in published], first_break(published)) == ([0, 1, 2], None)


async def test_record_of_a_candidate_that_is_set_back_starts_nothing() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.controller.step()
    old = await copy_of_record(world)
    await world.until("running")
    await world.operators.act(Act.ROLLBACK, Order("ann", "it looks bad"))
    await set_back(world, old)
    assert (await world.until("aborted")).reason.startswith("its record was set back")
    assert (await world.route()).canary is None


async def test_record_that_is_set_back_undoes_no_promotion() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    old = await copy_of_record(world)
    await world.operators.act(Act.PROMOTE, Order("ann", "fine", override=True))
    await set_back(world, old)
    current = await world.controller.current()
    assert (current and current.state, (await world.route()).stable) == ("promoted", served(2))


async def test_rollout_after_a_lost_record_begins_and_goes_on_with_the_chain() -> None:
    world = await CanaryWorld().with_policies(1, 2)
    await world.until("running")
    await world.operators.act(Act.ROLLBACK, Order("ann", "it looks bad"))
    await Bucket(world.bus, ROLLOUTS, msgspec.Raw).delete(ROLE)
    await Bucket(world.bus, POLICIES, PolicyVersion).put(f"{ROLE}.3", policy(3))
    world.restart()
    await world.controller.step()
    world.restart()
    assert (await world.until("running")).candidate == served(3)
    assert first_break(world.bus.published(ModelRollout)) is None
