"""What Ratchet's own code does for a trajectory from its recording to its reward: the small form of `make bench-plane`.

Counted in calls of functions, not in seconds: beside a calibration loop of the same process, seconds of the processor
still varied by a fifth on a busy machine, and calls vary by nothing.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ratchet.bus.consumer import Done
from ratchet.bus.envelope import Record, Sealer, event_id_of
from ratchet.bus.message import Message
from ratchet.bus.received import Received
from ratchet.core.contract import Reward, Trajectory
from ratchet.core.rules.redaction import redact_message
from ratchet.core.service.contracts import load_contracts
from ratchet.reward_computer.domain.drift import watch_reward
from ratchet.reward_computer.domain.normalization import function_of
from ratchet.trajectory_collector.rows import TABLES, row_of
from tests.support.messages import AT, trajectory
from tests.support.rewards import FoldedStates, StoredFacts, computer, score_windows, turn_histories

CALLS = 1402
"""Calls a trajectory, as committed: lower it with what makes the plane cheaper."""
GROWTH = 1.15
BATCH, ROUNDS = 20, 5
TEXT = "the order arrives on tuesday after the depot has counted it again " * 7
CONTRACTS = load_contracts()
SEALER = Sealer(CONTRACTS, "test", lambda: AT)


def recorded(number: int) -> Trajectory:
    """A trajectory of four turns and 4 KB."""
    (turn,) = trajectory().turns
    asked, answered = msgspec.structs.replace(turn.observation, content=TEXT), turn.action
    turns = [
        msgspec.structs.replace(
            turn, turn_id=n, observation=asked, action=msgspec.structs.replace(answered, raw_response=TEXT)
        )
        for n in range(1, 5)
    ]
    return trajectory(f"{number}", turns=turns)


class Plane:
    """Client, collector and reward computer in one process, from one to the next by bytes; nothing waits."""

    def __init__(self) -> None:
        self.histories, self.windows = turn_histories(), score_windows()
        self.drift = FoldedStates(function_of, watch_reward)
        self.sequence = 0

    async def rewards_of(self, batch: Sequence[Trajectory]) -> list[Reward]:
        """Everything between the recording of these and their rewards' rows."""
        sent = self.delivered([SEALER.seal(redact_message(message)[0]) for message in batch])
        facts = StoredFacts()
        for received in self.read(sent):
            row_of(TABLES[Trajectory.TOPIC], received, "made/0", AT)
            facts.store(received.message)
            self.histories.fold(received)
        computing = computer(facts, histories=self.histories, windows=self.windows)
        outcomes = await computing.first_rewards(self.read(sent))
        events = [event for outcome in outcomes if isinstance(outcome, Done) for event in outcome.events]
        rewards = self.read(self.delivered([SEALER.seal(event) for event in events]))
        for received in rewards:
            row_of(TABLES[Reward.TOPIC], received, "made/0", AT)
            self.windows.fold(received)
            self.drift.fold(received)
        return [received.message for received in rewards]

    def delivered(self, records: Sequence[Record]) -> list[tuple[int, Record]]:
        """The records with their places in a stream."""
        first, self.sequence = self.sequence + 1, self.sequence + len(records)
        return list(enumerate(records, first))

    def read(self, sent: Sequence[tuple[int, Record]]) -> list[Received[Any]]:
        """What a reader makes of them."""
        return [self._read(sequence, record) for sequence, record in sent]

    def _read(self, sequence: int, record: Record) -> Received[Message]:
        message, _ = CONTRACTS.read(record.subject, record.body)
        event_id = event_id_of(record.headers, message)
        return Received(
            message, record.subject, "TEST", sequence, 1, event_id, AT, event_id, None, record.headers, record.body
        )


async def test_a_trajectory_takes_no_more_calls_than_are_committed() -> None:
    plane = Plane()
    batches = [[recorded(number * BATCH + place) for place in range(BATCH)] for number in range(1 + ROUNDS)]
    await plane.rewards_of(batches[0])  # what is remembered from then on
    profile = cProfile.Profile()
    profile.enable()
    rewards = [await plane.rewards_of(batch) for batch in batches[1:]]
    profile.disable()
    assert [len(of_batch) for of_batch in rewards] == [BATCH] * ROUNDS
    calls = cast("int", vars(pstats.Stats(profile))["total_calls"]) / (BATCH * ROUNDS)
    assert calls <= CALLS * GROWTH
