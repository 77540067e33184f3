"""Facts and states in memory for the reward computer, and a world in which its messages race."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from ratchet.bus.consumer import Done, Outcome
from ratchet.bus.received import Received
from ratchet.core.contract import Feedback, Message, Reward, Trajectory, named_id
from ratchet.core.contract.reward import RewardFunction
from ratchet.reward_computer.clickhouse_facts import Event
from ratchet.reward_computer.domain.history import add_trajectory, history_key
from ratchet.reward_computer.domain.normalization import add_reward, function_of
from ratchet.reward_computer.domain.parents import Link
from ratchet.reward_computer.domain.reward import RewardSpec
from ratchet.reward_computer.handlers import RewardComputer
from tests.support.messages import AT, stored_at, trajectory

Key = tuple[str, str]
TABLES: Mapping[type[Message], str] = {Trajectory: "trajectories", Reward: "rewards", Feedback: "feedback"}
FUNCTION = RewardFunction(name="standard", version="1")


def feedback(number: int = 1, name: str = "one", **changes: Any) -> Feedback:
    """The `number`-th opinion on the trajectory `name`: by default a thumb up of a rater of its own."""
    fields: dict[str, Any] = {
        "feedback_id": named_id("feedback", name, number),
        "trajectory_id": named_id("trajectory", name),
        "kind": "thumbs",
        "at": AT + timedelta(minutes=number),
        "role": "support",
        "value": True,
        "rater": f"rater-{number}",
    }
    return Feedback(**(fields | changes))


def received(message: Message, sequence: int = 1, delivered: int = 1) -> Received[Any]:
    """A delivery of `message`."""
    return Received(
        message=message,
        subject=message.subject,
        stream="TEST",
        sequence=sequence,
        delivered=delivered,
        event_id=message.event_id,
        time=stored_at(message),
        correlation_id=message.event_id,
    )


class StoredFacts:
    """The rows of ClickHouse: the first one of every event. `meanwhile` runs before each read."""

    def __init__(self, meanwhile: Callable[[], Any] | None = None) -> None:
        self._rows: dict[str, dict[Event, Message]] = defaultdict(dict)
        self._meanwhile = meanwhile
        self.ledger: dict[int, str] = {}
        """Outcomes of messages that have no row."""
        self.unsettled: set[int] = set()
        """Sequences that the collector has not come to."""

    def store(self, message: Message, event_id: str | None = None) -> None:
        key = (getattr(message, "role", ""), getattr(message, "trajectory_id", ""))
        self._rows[TABLES[type(message)]].setdefault((*key, event_id or message.event_id), message)

    def all_rewards(self) -> list[Reward]:
        return [message for message in self._rows["rewards"].values() if isinstance(message, Reward)]

    def is_settled(self, stream: str, sequence: int) -> bool:
        return sequence not in self.unsettled

    async def wait_for(self, stream: str, sequences: Iterable[int], deadline_s: float) -> None:
        await self._pause()

    async def wait_for_any(self, stream: str, sequences: Iterable[int], deadline_s: float) -> None:
        await self._pause()

    async def stored(self, table: str, events: Iterable[Event]) -> set[Event]:
        await self._pause()
        return set(events) & self._rows[table].keys()

    async def outcomes(self, stream: str, sequences: Iterable[int]) -> Mapping[int, str]:
        return {sequence: self.ledger[sequence] for sequence in sequences if sequence in self.ledger}

    async def trajectories(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Any]]:
        return await self._of("trajectories", keys)

    async def links(self, named: str, ids: Iterable[str]) -> Sequence[Link]:
        links = [
            Link(row.role, row.trajectory_id, row.parent_trajectory_id or "", row.user_ref)
            for row in self._rows["trajectories"].values()
            if isinstance(row, Trajectory)
        ]
        known = set(ids)
        return [link for link in links if (link.trajectory_id if named == "itself" else link.parent_id) in known]

    async def places(self, keys: Iterable[Key]) -> Mapping[Key, int]:
        return dict.fromkeys(keys, 1)

    async def rewards(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Any]]:
        return await self._of("rewards", keys)

    async def feedback(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Any]]:
        return await self._of("feedback", keys)

    async def assessments(self, keys: Iterable[Key]) -> tuple[Mapping[Key, Sequence[Any]], Mapping[Key, Sequence[Any]]]:
        keys = list(keys)
        return await self.rewards(keys), await self.feedback(keys)

    async def _of(self, table: str, keys: Iterable[Key]) -> Mapping[Key, Sequence[Any]]:
        await self._pause()
        rows: dict[Key, list[Any]] = defaultdict(list)
        for message in self._rows[table].values():
            key = (getattr(message, "role", ""), getattr(message, "trajectory_id", ""))
            if key in set(keys):
                rows[key].append(message)
        return rows

    async def _pause(self) -> None:
        if self._meanwhile is not None:
            await self._meanwhile()


class FoldedStates:
    """A projection that has folded everything it was given."""

    def __init__(
        self, key_of: Callable[[Received[Any]], str | None], step: Callable[[Any, Received[Any]], Any]
    ) -> None:
        self._key_of, self._step = key_of, step
        self._states: dict[str, Any] = {}
        self.applied_seq = 0

    def fold(self, one: Received[Any]) -> None:
        key = self._key_of(one)
        if key is not None:
            self._states[key] = self._step(self._states.get(key), one)
        self.applied_seq = one.sequence

    def state(self, key: str) -> Any:
        return self._states.get(key)

    async def wait_for(self, sequence: int) -> None:
        assert self.applied_seq >= sequence, "the test must fold first"


def turn_histories() -> FoldedStates:
    return FoldedStates(lambda one: history_key(one.message), add_trajectory)


def score_windows() -> FoldedStates:
    return FoldedStates(function_of, add_reward)


@dataclass(frozen=True)
class Settled:
    """`InForce`: one function for ever."""

    spec: RewardSpec

    async def in_force(self) -> RewardSpec:
        return self.spec


async def _none_yet() -> int:
    return 0


def computer(facts: StoredFacts, **changes: Any) -> RewardComputer:
    """Handlers over in-memory facts; nothing is folded unless projections are given."""
    histories = turn_histories()
    histories.applied_seq = 1_000_000
    fields: dict[str, Any] = {
        "functions": Settled(changes.pop("spec", RewardSpec(function=FUNCTION))),
        "facts": facts,
        "settled": facts,
        "histories": histories,
        "windows": score_windows(),
        "newest_reward": _none_yet,
        "now": lambda: AT,
        "patience": timedelta(hours=1),
    }
    return RewardComputer(**(fields | changes))


class RacingWorld:
    """One trajectory and several opinions on it, under a hostile schedule.

    The collector stores messages in any order and at any time, also between two reads of a handler. Several workers
    handle deliveries at once, crash before they publish or before they ack, and are given messages again. The broker
    keeps the first message of every id.
    """

    def __init__(self, opinions: Sequence[Feedback], schedule: Random) -> None:
        self.facts = StoredFacts(self._meanwhile)
        self.published: dict[str, Reward] = {}
        self.versions: dict[str, list[Reward]] = defaultdict(list)
        self._random = schedule
        self._computer = computer(self.facts)
        self._unstored: list[Message] = [trajectory(), *opinions]
        self._unsettled: list[Message] = [trajectory(), *opinions]
        self._depth = 0

    async def run(self) -> None:
        """Until every message is settled and everything published is stored."""
        for _ in range(10_000):
            if not self._unsettled and not self._unstored:
                return
            await self._something()
        raise AssertionError("messages are never settled")

    async def _meanwhile(self) -> None:
        if self._depth < 3 and self._random.random() < 0.6:
            await self._something()

    async def _something(self) -> None:
        if self._unstored and (not self._unsettled or self._random.random() < 0.08):
            self.facts.store(self._unstored.pop(self._random.randrange(len(self._unstored))))
        elif self._unsettled:
            await self._deliver(self._random.choice(self._unsettled))

    async def _deliver(self, message: Message) -> None:
        self._depth += 1
        computer = self._computer
        handle = computer.revisions if isinstance(message, Feedback) else computer.first_rewards
        (outcome,) = await handle([received(message)])
        self._depth -= 1
        fate = self._random.choice(["fine", "fine", "crash before publishing", "crash before the ack"])
        if isinstance(outcome, Done) and fate != "crash before publishing":
            self._publish(outcome)
            if fate == "fine" and message in self._unsettled:
                self._unsettled.remove(message)

    def _publish(self, outcome: Outcome) -> None:
        assert isinstance(outcome, Done)
        for event in outcome.events:
            assert isinstance(event, Reward)
            self.versions[event.reward_id].append(event)
            if event.reward_id not in self.published:
                self.published[event.reward_id] = event
                self._unstored.append(event)
