"""Silent trajectories are assembled once; turns that do not add up to one hold up no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from datetime import datetime, timedelta

from nats.aio.client import Client as Nats

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.core.contract import Turn, named_id
from ratchet.core.errors import ContractError
from ratchet.core.service.contracts import load_contracts
from ratchet.trajectory_collector.clickhouse_facts import EVERY_ROLE, Facts, Roles, RunKey, Silence
from ratchet.trajectory_collector.domain import Inference, Run
from ratchet.trajectory_collector.idle import IdleAssembler, Patience
from ratchet.trajectory_collector.nats_streams import Streams
from tests.support.messages import AT, turn

HOUR = timedelta(hours=1)


class Settled(Streams):
    """A broker whose messages are all settled."""

    def __init__(self) -> None:
        self.at = AT

    async def settled_until(self, stream: str, consumer: str) -> datetime:
        return self.at


class Silent(Facts):
    """Trajectories that fell silent one after the other, a second apart."""

    def __init__(self, turns: dict[str, list[Turn]]) -> None:
        self._turns = {named_id("trajectory", name): part for name, part in turns.items()}
        self.read: list[str] = []
        self.unreadable: set[str] = set()

    async def idle(
        self, after: Silence, before: datetime, limit: int, roles: Roles = EVERY_ROLE
    ) -> list[tuple[Silence, bool]]:
        every = [Silence(AT - 2 * HOUR + timedelta(seconds=n), "support", name) for n, name in enumerate(self._turns)]
        return [(one, True) for one in every if after < one and one.heard_at <= before][:limit]

    async def runs(self, keys: Collection[RunKey]) -> AsyncIterator[tuple[RunKey, Run]]:
        for key in keys:
            if key[1] in self.unreadable:
                raise ContractError("a stored turn that cannot be read")
        for key in keys:
            self.read.append(key[1])
            yield key, Run(self._turns[key[1]])


class Publishing(Bus):
    """A bus that keeps what it publishes."""

    def __init__(self) -> None:
        super().__init__(Nats(), name="test", contracts=load_contracts(), replicas=1)
        self.published: list[str] = []

    async def publish_record(self, record: Record) -> None:
        self.published.append(record.subject)


async def test_turns_that_cannot_be_assembled_hold_up_no_other_trajectory() -> None:
    deep = turn("deep", response={"role": "assistant", "content": None, "tool_calls": [_call('{"a":' * 5000)]})
    broken = turn("broken", messages=[{"role": "user"}], response={"tool_calls": 7})
    facts = Silent({"unanswered": [turn(response=None)], "deep": [deep], "broken": [broken], "fine": [turn("fine")]})
    bus = Publishing()
    idle = assembler(bus, facts, Settled())
    for _ in range(3):
        await idle.tick()
    assert facts.read == [named_id("trajectory", name) for name in ("unanswered", "deep", "broken", "fine")]
    assert bus.published == ["agent.rl.trajectory.v1.support"] * 3  # a failure, for that of which no call was answered


async def test_a_run_that_cannot_be_read_holds_up_no_other() -> None:
    facts, bus = Silent({name: [turn(name)] for name in ("one", "two", "three")}), Publishing()
    facts.unreadable = {named_id("trajectory", "two")}
    await assembler(bus, facts, Settled()).tick()
    assert facts.read == [named_id("trajectory", name) for name in ("one", "three")]
    assert len(bus.published) == 2


async def test_a_trajectory_that_is_not_silent_for_long_enough_waits() -> None:
    settled, facts, bus = Settled(), Silent({"fine": [turn("fine")]}), Publishing()
    idle = assembler(bus, facts, settled)
    settled.at = AT - 3 * HOUR / 2
    await idle.tick()
    assert bus.published == []
    settled.at = AT
    await idle.tick()
    assert len(bus.published) == 1


def assembler(bus: Bus, facts: Facts, streams: Streams) -> IdleAssembler:
    patience = Patience(HOUR, 3 * HOUR)
    durables = {"RL_TURNS": "collector-turns"}
    return IdleAssembler(bus, facts, streams, durables, patience=patience, inference=Inference())


def _call(arguments: str) -> dict[str, object]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
