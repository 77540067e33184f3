"""Rewards of parents reach the trajectories below them: in any order, once each, and never round in a circle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ratchet.bus.consumer import Dead, Done, Outcome, Retry
from ratchet.core.contract import Feedback, Reward, Trajectory, named_id
from ratchet.core.contract.reward import PARENT_REWARD
from ratchet.core.service.contracts import load_contracts
from ratchet.reward_computer.components import Evidence
from ratchet.reward_computer.domain.parents import DEPTH
from ratchet.reward_computer.domain.reward import Circumstances, RewardSpec, reward_of
from ratchet.reward_computer.sharing import Sharing
from tests.support.messages import AT, trajectory
from tests.support.rewards import FUNCTION, Settled, StoredFacts, computer, feedback, received

SPEC = RewardSpec(
    function=FUNCTION, weights={"default": {"task_completion": 1.0}, "worker": {"task_completion": 0.5, "parent": 0.5}}
)


def child(name: str, parent: str, role: str = "worker", **changes: Any) -> Trajectory:
    """Without an outcome of its own."""
    above = named_id("trajectory", parent)
    return trajectory(name, role=role, parent_trajectory_id=above, **({"outcome": None} | changes))


def holding(*trajectories: Trajectory) -> StoredFacts:
    facts = StoredFacts()
    for each in trajectories:
        facts.store(each)
    return facts


def rewarded(
    facts: StoredFacts, of: Trajectory, *given: Feedback, revision: int = 0, spec: RewardSpec = SPEC
) -> Reward:
    """A stored reward."""
    when = Circumstances(AT + timedelta(seconds=revision), revision)
    reward = reward_of(spec, Evidence(of, given), when)
    facts.store(reward)
    return reward


async def outcome_of(facts: StoredFacts, reward: Reward, after: timedelta = timedelta(0)) -> Outcome:
    made = Sharing(Settled(SPEC), facts, lambda: AT + after, timedelta(hours=1))  # pyright: ignore[reportArgumentType] - facts in memory
    (outcome,) = await made.shared([received(reward)])
    return outcome


async def shared(facts: StoredFacts, reward: Reward) -> list[Feedback]:
    outcome = await outcome_of(facts, reward)
    assert isinstance(outcome, Done)
    given = [event for event in outcome.events if isinstance(event, Feedback)]
    for event in given:
        load_contracts().check_strict(event)
    return given


async def test_reward_of_a_parent_is_feedback_on_its_child() -> None:
    parent, below = trajectory("parent"), child("child", "parent", user_ref="u1")
    facts = holding(parent, below)
    (given,) = await shared(facts, rewarded(facts, parent))
    assert (given.kind, given.trajectory_id, given.role) == (PARENT_REWARD, below.trajectory_id, "worker")
    assert (given.value, given.parent_trajectory_id, given.user_ref) == (1.0, parent.trajectory_id, "u1")


async def test_child_that_is_rewarded_later_looks_for_the_reward_above() -> None:
    parent, below = trajectory("parent"), child("child", "parent")
    facts = holding(parent)
    assert await shared(facts, reward := rewarded(facts, parent)) == []
    facts.store(below)
    late = await shared(facts, rewarded(facts, below))
    assert late == await shared(facts, reward)


async def test_shared_reward_makes_the_next_revision_of_the_child() -> None:
    parent, below = trajectory("parent"), child("child", "parent")
    facts = holding(parent, below)
    assert rewarded(facts, below).metadata.confidence == 0
    (given,) = await shared(facts, rewarded(facts, parent))
    facts.store(given)
    (outcome,) = await computer(facts, spec=SPEC).revisions([received(given)])
    assert isinstance(outcome, Done)
    (revised,) = outcome.events
    assert isinstance(revised, Reward)
    assert (revised.revision, revised.total_reward, revised.first_scored) == (1, 1.0, ["parent"])
    assert revised.metadata.confidence == 0.5


async def test_weight_of_the_parent_is_its_share_of_the_reward() -> None:
    parent, below = trajectory("parent"), child("child", "parent", outcome=trajectory().outcome)
    failed = trajectory("parent", outcome=None)
    facts = holding(parent, below)
    (given,) = await shared(facts, rewarded(facts, failed, feedback(1, "parent", value=False), spec=opinions_count()))
    assert given.value == 0.0
    assert rewarded(facts, below, given, revision=1).total_reward == 0.5


def opinions_count() -> RewardSpec:
    return RewardSpec(function=FUNCTION, weights={"default": {"user_feedback": 1.0}})


async def test_newest_reward_of_the_parent_supersedes_those_before() -> None:
    parent, below = trajectory("parent"), child("child", "parent")
    facts, spec = holding(parent, below), opinions_count()
    opinion = feedback(1, "parent", value=False)
    (first,) = await shared(facts, rewarded(facts, parent))
    (second,) = await shared(facts, rewarded(facts, parent, opinion, revision=1, spec=spec))
    assert first.feedback_id != second.feedback_id
    assert rewarded(facts, below, second, first, revision=2).total_reward == 0.0


@pytest.mark.parametrize("set_back", [timedelta(0), timedelta(days=1)])
async def test_revision_of_a_parent_is_newest_whatever_the_clock(set_back: timedelta) -> None:
    parent, below, opinion = trajectory("parent"), child("child", "parent"), feedback(1, "parent", value=False)
    facts = holding(parent, below)
    (first,) = await shared(facts, rewarded(facts, parent))
    facts.store(opinion)
    now = AT - set_back
    (outcome,) = await computer(facts, spec=opinions_count(), now=lambda: now).revisions([received(opinion)])
    assert isinstance(outcome, Done)
    (revised,) = outcome.events
    facts.store(revised)
    assert isinstance(revised, Reward)
    (second,) = await shared(facts, revised)
    assert second.at > first.at


async def test_chain_shares_step_by_step() -> None:
    top, middle, leaf = trajectory("top"), child("middle", "top"), child("leaf", "middle")
    facts = holding(top, middle, leaf)
    (down,) = await shared(facts, rewarded(facts, top))
    assert down.trajectory_id == middle.trajectory_id
    (further,) = await shared(facts, rewarded(facts, middle, down, revision=1))
    assert (further.trajectory_id, further.value) == (leaf.trajectory_id, 1.0)


@pytest.mark.parametrize("ring", [["a"], ["a", "b"], ["a", "b", "c"]])
async def test_circle_of_parents_shares_nothing(ring: list[str]) -> None:
    ok = trajectory().outcome
    members = [child(name, ring[place - 1], outcome=ok) for place, name in enumerate(ring)]
    facts = holding(*members, child("below", "a"))
    assert [await shared(facts, rewarded(facts, member)) for member in members] == [[] for _ in ring]


async def test_more_trajectories_above_than_the_bound_share_nothing() -> None:
    chain = [trajectory("0"), *(child(str(n), str(n - 1), outcome=trajectory().outcome) for n in range(1, DEPTH + 2))]
    facts = holding(*chain)
    given = [await shared(facts, rewarded(facts, member)) for member in chain]
    assert [len(each) for each in given[:-2]] == [1, *[2] * (DEPTH - 1)]
    assert [each.trajectory_id for each in given[-2]] == [chain[-2].trajectory_id]
    assert given[-1] == []


async def test_role_without_the_component_shares_nothing() -> None:
    parent, below = trajectory("parent"), child("child", "parent", role="other")
    facts = holding(parent, below)
    assert await shared(facts, rewarded(facts, parent)) == []
    assert await shared(facts, rewarded(facts, below)) == []


async def test_id_of_a_parent_in_two_other_roles_shares_nothing() -> None:
    parent, other, below = trajectory("parent"), trajectory("parent", role="other"), child("child", "parent")
    facts = holding(parent, other, below)
    assert await shared(facts, rewarded(facts, parent)) == []
    assert await shared(facts, rewarded(facts, other)) == []


async def test_parent_of_the_own_role_comes_before_those_of_others() -> None:
    own, other, below = trajectory("parent", role="worker"), trajectory("parent"), child("child", "parent")
    facts = holding(own, other, below)
    assert await shared(facts, rewarded(facts, other)) == []
    (given,) = await shared(facts, rewarded(facts, own))
    assert given.trajectory_id == below.trajectory_id


async def test_parent_that_nothing_is_known_of_shares_nothing() -> None:
    unknown, below = trajectory("parent", outcome=None), child("child", "parent")
    facts = holding(unknown, below)
    assert await shared(facts, rewarded(facts, unknown)) == []


async def test_reward_under_another_function_is_not_shared() -> None:
    parent, below = trajectory("parent"), child("child", "parent")
    facts, spec = holding(parent, below), RewardSpec(function=type(FUNCTION)(name="older", version="1"))
    assert await shared(facts, rewarded(facts, parent, spec=spec)) == []
    assert await shared(facts, rewarded(facts, below)) == []


async def test_reward_waits_for_its_row_and_gives_up_in_the_end() -> None:
    parent = trajectory("parent")
    reward = rewarded(StoredFacts(), parent)
    assert isinstance(await outcome_of(holding(parent), reward), Retry)
    assert isinstance(await outcome_of(holding(parent), reward, timedelta(hours=2)), Dead)


def test_feedback_of_another_parent_does_not_count() -> None:
    below = child("child", "parent")
    given = feedback(1, "child", kind=PARENT_REWARD, value=1.0, parent_trajectory_id=named_id("trajectory", "other"))
    part = reward_of(SPEC, Evidence(below, [given]), Circumstances(AT)).reward_components["parent"]
    assert not part.applicable


def test_rewards_are_shared_where_some_role_weighs_the_parent() -> None:
    assert SPEC.shares_rewards
    assert not RewardSpec(function=FUNCTION).shares_rewards
