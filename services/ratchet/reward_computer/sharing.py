"""Rewards -> rewards of parents: feedback of the kind `parent_reward` on the trajectories below.

It is there only while some role gives its component `parent` a weight. A reward waits until ClickHouse holds it, then
looks both ways: for stored trajectories that name the rewarded one as their parent, and for the reward of its own
parent. So of a parent's reward and a child's first one, the one that is stored later is handled by a reader that sees
the other. A shared reward makes the child's next revision, which is shared with the child's own children: a chain
shares step by step. The id of the feedback follows from the child and the parent's revision; the newest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ratchet.bus.consumer import Dead, Done, Outcome, Retry
from ratchet.bus.received import Received
from ratchet.core.contract import Feedback, Reward, named_id
from ratchet.core.contract.reward import PARENT_REWARD
from ratchet.reward_computer.clickhouse_facts import Event, Facts, Key
from ratchet.reward_computer.domain.parents import DEPTH, Family, Link
from ratchet.reward_computer.domain.reward import PARENT, RewardSpec, newest
from ratchet.reward_computer.kv_functions import InForce


@dataclass(frozen=True, slots=True)
class _Known:
    """The function in force, the trajectories around those of a batch, and the rewards of their parents."""

    spec: RewardSpec
    family: Family
    own: Mapping[Key, Link]
    children: Sequence[Link]
    above: Mapping[Key, Sequence[Reward]]


@dataclass(frozen=True)
class Sharing:
    """The handler."""

    functions: InForce
    facts: Facts
    now: Callable[[], datetime]
    patience: timedelta
    """How long a reward waits for its row."""

    async def is_needed(self) -> bool:
        """Whether the function in force shares rewards in any role. Raises `BusUnavailable`."""
        return (await self.functions.in_force()).shares_rewards

    async def shared(self, batch: Sequence[Received[Reward]]) -> Sequence[Outcome]:
        """Share rewards with children, and look for those of parents. Raises `Unavailable` where ClickHouse is away."""
        spec = await self.functions.in_force()
        counted = {_event(received) for received in batch if received.message.reward_function == spec.function}
        stored = await self.facts.stored("rewards", counted) if counted else set[Event]()
        known = await self._known(spec, [received.message for received in batch if _event(received) in stored])
        return [self._outcome(received, stored, known) if _event(received) in counted else Done() for received in batch]

    async def _known(self, spec: RewardSpec, rewards: Sequence[Reward]) -> _Known:
        family, ids = Family(), {reward.trajectory_id for reward in rewards}
        if not ids:
            return _Known(spec, family, {}, (), {})
        children, links = await self.facts.links("its parent", ids), await self.facts.links("itself", ids)
        unknown = family.add(links)
        for _ in range(DEPTH + 1):
            unknown = family.add(await self.facts.links("itself", unknown)) if unknown else unknown
        own = {(link.role, link.trajectory_id): link for link in links}
        parents = {parent for link in links if spec.shares(link.role) and (parent := family.parent_of(link))}
        above = await self.facts.rewards(parents) if parents else {}
        return _Known(spec, family, own, children, above)

    def _outcome(self, received: Received[Reward], stored: Collection[Event], known: _Known) -> Outcome:
        if _event(received) in stored:
            events = {event.feedback_id: event for event in _given(received.message, known)}
            return Done(list(events.values()))
        if self.now() - received.time > self.patience:
            return Dead("rejected", f"it has not been in ClickHouse for {self.patience}")
        return Retry("the reward is not stored yet", delay_s=min(10.0, 0.2 * received.delivered))


def _given(reward: Reward, known: _Known) -> Iterator[Feedback]:
    """What a reward is to the children of its trajectory, and the parent's reward to that."""
    key, spec = (reward.role, reward.trajectory_id), known.spec
    for child in known.children if reward.metadata.confidence else ():
        if spec.shares(child.role) and known.family.parent_of(child) == key:
            yield _feedback(child, reward)
    own, part = known.own.get(key), reward.reward_components.get(PARENT)
    if own is None or part is None or part.applicable:
        return
    last = newest(known.above.get(known.family.parent_of(own) or ("", ""), ()), spec.function)
    if last is not None and last.reward_function == spec.function and last.metadata.confidence:
        yield _feedback(own, last)


def _feedback(child: Link, reward: Reward) -> Feedback:
    return Feedback(
        feedback_id=named_id(PARENT_REWARD, child.role, child.trajectory_id, reward.reward_id),
        trajectory_id=child.trajectory_id,
        kind=PARENT_REWARD,
        at=reward.timestamp,
        role=child.role,
        value=reward.total_reward,
        user_ref=child.user_ref,
        source="reward_computer",
        parent_trajectory_id=reward.trajectory_id,
    )


def _event(received: Received[Reward]) -> Event:
    return received.message.role, received.message.trajectory_id, received.event_id
