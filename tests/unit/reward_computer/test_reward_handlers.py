"""The handlers: both orders, repetition, several workers, crashes; no opinion is lost and none counts twice."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import msgspec
import pytest
from hypothesis import given, strategies as st

from ratchet.bus.consumer import Dead, Done, Later, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.bus.tasks import SHARE_S, end
from ratchet.core.contract import Message, Outcome as Claim, Reward, Trajectory
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.trajectory import TaskContext
from ratchet.reward_computer.components import Assessment, Evidence
from ratchet.reward_computer.domain.reward import RewardSpec, newest
from tests.support.messages import AT, stored_at, trajectory
from tests.support.rewards import (
    FUNCTION,
    RacingWorld,
    StoredFacts,
    computer,
    feedback,
    received,
    score_windows,
    turn_histories,
)
from tests.unit.reward_computer.test_reward_components import turns


def holding(*messages: Message) -> StoredFacts:
    facts = StoredFacts()
    for message in messages:
        facts.store(message)
    return facts


def published(outcome: Outcome) -> list[Reward]:
    assert isinstance(outcome, Done)
    return [event for event in outcome.events if isinstance(event, Reward)]


def included(reward: Reward) -> set[str]:
    return set((reward.reward_components["user_feedback"].raw_data or {}).get("feedback_ids", ()))


async def first(facts: StoredFacts, message: Trajectory, sequence: int = 1) -> Outcome:
    (outcome,) = await computer(facts).first_rewards([received(message, sequence)])
    return outcome


async def test_a_trajectory_gets_its_first_reward() -> None:
    (reward,) = published(await first(holding(trajectory()), trajectory()))
    assert (reward.trajectory_id, reward.revision, reward.role) == (trajectory().trajectory_id, 0, "support")


async def test_rewards_go_on_when_their_stream_is_made_anew() -> None:
    async def fifth() -> int:
        return 5

    windows = score_windows()
    windows.applied_seq = 5
    rewarding = computer(holding(trajectory()), windows=windows, newest_reward=fifth)
    for _ in range(2):
        (outcome,) = await rewarding.first_rewards([received(trajectory())])
        assert published(outcome)
        windows.applied_seq = 1  # of another stream, whose messages are few


def assembled(at: datetime, by: str) -> Received[Trajectory]:
    """A trajectory that says it was assembled from an end that was stored at this instant; `by` published it."""
    metadata = msgspec.structs.replace(trajectory().metadata, source="assembled", reported_at=at)
    return replace(received(trajectory(metadata=metadata)), headers={"ce-source": f"urn:ratchet:{by}"})


async def reported_at(report: Received[Trajectory]) -> datetime | None:
    (outcome,) = await computer(holding(report.message)).first_rewards([report])
    return published(outcome)[0].reported_at


async def test_reward_has_the_instant_of_the_end_however_late_it_was_assembled() -> None:
    ended = AT - timedelta(minutes=5)
    assert await reported_at(assembled(ended, "trajectory_collector")) == ended
    assert await reported_at(received(trajectory())) == stored_at(trajectory())


async def test_reward_does_not_believe_an_agent_when_its_end_was_stored() -> None:
    report = assembled(AT - timedelta(days=9000), "my-agent")
    assert await reported_at(report) == stored_at(report.message)


async def test_a_trajectory_that_is_not_stored_yet_waits() -> None:
    assert isinstance(await first(holding(), trajectory()), Retry)


@pytest.mark.parametrize(("passed_for", "overtaken"), [(0.5, Later), (1.5, Retry)])
async def test_stored_trajectories_wait_for_none_that_is_not(passed_for: float, overtaken: type[Outcome]) -> None:
    facts = holding(trajectory("1"), trajectory("3"))
    facts.unsettled = {2, 4}
    batch = [received(trajectory(str(number)), number) for number in range(1, 5)]
    rewarding = computer(facts, now=lambda: batch[1].time + timedelta(seconds=passed_for))
    outcomes = await rewarding.first_rewards(batch)
    assert [type(outcome) for outcome in outcomes] == [Done, overtaken, Done, Later]


async def test_trajectories_of_which_none_is_stored_in_time_are_retried() -> None:
    facts = holding()
    facts.unsettled = {1, 2}
    outcomes = await computer(facts).first_rewards([received(trajectory(str(number)), number) for number in (1, 2)])
    assert [type(outcome) for outcome in outcomes] == [Retry, Retry]


async def test_a_trajectory_is_rewarded_once_also_when_it_comes_again_much_later() -> None:
    facts = holding(trajectory())
    (reward,) = published(await first(facts, trajectory()))
    facts.store(reward)
    assert published(await first(facts, trajectory(), sequence=999)) == []


async def test_feedback_that_came_first_is_in_the_first_reward() -> None:
    facts = holding(feedback(value=False))
    (early,) = await computer(facts).revisions([received(feedback(value=False))])
    assert published(early) == []
    facts.store(trajectory())
    (reward,) = published(await first(facts, trajectory()))
    assert included(reward) == {feedback().feedback_id}
    facts.store(reward)
    (again,) = await computer(facts).revisions([received(feedback(value=False), delivered=2)])
    assert published(again) == []


async def test_late_feedback_makes_the_next_revision() -> None:
    facts = holding(trajectory())
    (initial,) = published(await first(facts, trajectory()))
    facts.store(initial)
    facts.store(feedback(value=False))
    (outcome,) = await computer(facts).revisions([received(feedback(value=False))])
    (revised,) = published(outcome)
    assert (revised.revision, included(revised)) == (1, {feedback().feedback_id})
    assert revised.total_reward < initial.total_reward
    assert revised.reward_id != initial.reward_id
    facts.store(revised)
    (repeated,) = await computer(facts).revisions([received(feedback(value=False), delivered=2)])
    assert published(repeated) == []


async def test_a_revision_uses_the_baseline_of_the_first_reward() -> None:
    histories = turn_histories()
    for sequence in range(1, 21):
        histories.fold(received(trajectory(str(sequence), turns=turns(5 + sequence % 2)), sequence))
    facts = holding(trajectory("20", turns=turns(5)))
    (outcome,) = await computer(facts, histories=histories).first_rewards(
        [received(trajectory("20", turns=turns(5)), 20)]
    )
    (initial,) = published(outcome)
    assert (initial.reward_components["efficiency"].raw_data or {})["count"] == 19
    facts.store(initial)
    facts.store(feedback(name="20"))
    (outcome,) = await computer(facts).revisions([received(feedback(name="20"))])
    (revised,) = published(outcome)
    assert revised.reward_components["efficiency"].raw_data == initial.reward_components["efficiency"].raw_data


@pytest.mark.parametrize("outcome", ["dead", "duplicate", "erased", "lost"])
async def test_what_was_settled_without_a_row_is_not_waited_for(outcome: str) -> None:
    facts = holding(trajectory("b"))
    facts.ledger[1] = outcome
    batch = [received(trajectory("a"), 1), received(trajectory("b"), 2), received(trajectory("c"), 3)]
    never, rewarded, later = await computer(facts).first_rewards(batch)
    assert published(never) == []
    assert published(rewarded)
    assert isinstance(later, Retry)


@pytest.mark.parametrize("outcome", ["stored", None])
async def test_a_row_that_is_missing_for_too_long_makes_a_dead_letter(outcome: str | None) -> None:
    facts, clock = holding(), [AT]
    if outcome:
        facts.ledger[1] = outcome
    patient = computer(facts, now=lambda: clock[0])
    outcomes: list[Outcome] = []
    for hours in (24, 24.9, 25.1):  # the first look may be late: the wait begins with it
        clock[0] = AT + timedelta(hours=hours)
        outcomes += await patient.first_rewards([received(trajectory())])
    assert [type(outcome) for outcome in outcomes] == [Retry, Retry, Dead]


async def test_runs_under_one_event_id_are_two_runs() -> None:
    facts = holding()
    facts.store(trajectory("a"), event_id="1")
    batch = [replace(received(trajectory(name), number), event_id="1") for number, name in enumerate("ab", 1)]
    rewarded, unstored = await computer(facts).first_rewards(batch)
    assert [reward.trajectory_id for reward in published(rewarded)] == [trajectory("a").trajectory_id]
    assert isinstance(unstored, Retry)


async def test_feedback_waits_for_its_own_row_and_for_the_first_reward() -> None:
    (unstored,) = await computer(holding(trajectory())).revisions([received(feedback())])
    assert isinstance(unstored, Retry)
    (unrewarded,) = await computer(holding(trajectory(), feedback())).revisions([received(feedback())])
    assert isinstance(unrewarded, Retry)


async def test_feedback_on_trajectory_that_is_never_rewarded_becomes_dead_letter() -> None:
    late = computer(holding(trajectory(), feedback()), now=lambda: AT + timedelta(hours=2))
    (outcome,) = await late.revisions([received(feedback())])
    assert isinstance(outcome, Dead)
    assert "was not rewarded in 1:00:00" in outcome.detail


async def test_comments_and_feedback_of_other_roles_change_nothing() -> None:
    facts = holding(trajectory())
    (initial,) = published(await first(facts, trajectory()))
    comment, foreign = feedback(1, kind="comment", value="hm"), feedback(2, role="other")
    for message in (initial, comment, foreign):
        facts.store(message)
    outcomes = await computer(facts).revisions([received(comment), received(foreign)])
    assert [published(outcome) for outcome in outcomes] == [[], []]


async def test_an_outcome_that_came_late_is_rewarded_as_if_it_had_come_in_time() -> None:
    """It counts once, as the agent's own claim, and not as an opinion."""
    late, corrected = trajectory(outcome=None), trajectory(outcome=Claim(status="success"))
    (initial,) = published(await first(holding(late), late))
    update = feedback(kind="update", value=None)
    facts = holding(corrected, initial, update)
    (outcome,) = await computer(facts).revisions([received(update)])
    (revised,) = published(outcome)
    (in_time,) = published(await first(holding(corrected), corrected))
    assert revised.revision == 1
    assert (revised.total_reward, revised.metadata) == (in_time.total_reward, in_time.metadata)
    assert not revised.reward_components["user_feedback"].applicable
    facts.store(revised)
    (again,) = await computer(facts).revisions([received(update, delivered=2)])
    assert published(again) == []


async def test_a_safety_label_that_came_late_makes_a_revision() -> None:
    late, corrected = trajectory(), trajectory(labels={"scores": {"safety": 0.0}})
    (initial,) = published(await first(holding(late), late))
    update = feedback(kind="update", value=None)
    (outcome,) = await computer(holding(corrected, initial, update)).revisions([received(update)])
    (revised,) = published(outcome)
    assert revised.reward_components["safety"].score == 0.0


async def test_two_opinions_in_one_batch_make_one_revision_with_both() -> None:
    facts = holding(trajectory(), feedback(1), feedback(2))
    (initial,) = published(await first(holding(trajectory()), trajectory()))
    facts.store(initial)
    outcomes = await computer(facts).revisions([received(feedback(1)), received(feedback(2), 2)])
    rewards = [reward for outcome in outcomes for reward in published(outcome)]
    assert [(reward.revision, len(included(reward))) for reward in rewards] == [(2, 2)]


async def test_every_message_of_a_batch_has_its_own_outcome() -> None:
    facts = holding(trajectory("a"), trajectory("c"))
    batch = [received(trajectory(name), sequence) for sequence, name in enumerate("abc", start=1)]
    outcomes = await computer(facts).first_rewards(batch)
    assert [type(outcome) for outcome in outcomes] == [Done, Retry, Done]


async def test_a_new_version_of_the_function_revises_from_the_old_reward() -> None:
    facts = holding(trajectory(), feedback())
    (initial,) = published(await first(holding(trajectory()), trajectory()))
    facts.store(initial)
    spec = RewardSpec(function=RewardFunction(name="standard", version="2"))
    (outcome,) = await computer(facts, spec=spec).revisions([received(feedback())])
    (revised,) = published(outcome)
    assert (revised.revision, revised.reward_function) == (1, spec.function)


async def test_normalisation_uses_the_windows_of_role_and_function() -> None:
    windows = score_windows()
    for number in range(20):
        status = trajectory(str(number)).outcome if number % 2 else None
        facts = holding(trajectory(str(number), outcome=status))
        (reward,) = published(await first(facts, trajectory(str(number), outcome=status)))
        windows.fold(received(reward, number + 1))
    (outcome,) = await computer(holding(trajectory()), windows=windows).first_rewards([received(trajectory())])
    (reward,) = published(outcome)
    assert (reward.reward_components["task_completion"].parameters or {})["count"] == 10


async def test_an_unusual_domain_has_a_history_of_its_own() -> None:
    histories = turn_histories()
    odd = TaskContext(task_id="1", instructions="", domain="flüge & hotels")
    for sequence in range(1, 8):
        histories.fold(received(trajectory(str(sequence), task_context=odd), sequence))
    message = trajectory("7", task_context=odd)
    (outcome,) = await computer(holding(message), histories=histories).first_rewards([received(message, 7)])
    (reward,) = published(outcome)
    assert (reward.reward_components["efficiency"].raw_data or {})["count"] == 6


@given(st.integers(0, 5), st.integers(0, 2**32))
async def test_under_any_schedule_the_last_reward_holds_every_opinion(count: int, seed: int) -> None:
    opinions = [feedback(number, value=bool(number % 2)) for number in range(count)]
    world = RacingWorld(opinions, Random(seed))
    await world.run()
    last = newest(world.facts.all_rewards(), FUNCTION)
    assert last is not None
    assert included(last) == {opinion.feedback_id for opinion in opinions}
    for same_id in world.versions.values():
        assert same_id[0].revision == 0 or len({frozenset(included(reward)) for reward in same_id}) == 1


async def test_others_work_within_a_long_batch() -> None:
    turns_of_others, seen = 0, list[int]()

    async def others() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    def slow(_: Evidence) -> Assessment:
        seen.append(turns_of_others)
        time.sleep(1.2 * SHARE_S)
        return Assessment(1.0, 1.0, "slowly")

    spec = RewardSpec(function=FUNCTION, weights={"support": {"slow": 1.0}}, components={"slow": slow})
    batch = [trajectory(str(number)) for number in range(8)]
    working = asyncio.create_task(others())
    outcomes = await computer(holding(*batch), spec=spec).first_rewards([received(message) for message in batch])
    await end(working)
    assert [published(outcome)[0].total_reward for outcome in outcomes] == [1.0] * 8
    assert len({*seen}) == 8
