"""What becomes of silent trajectories whose turns do not add up to one."""

from __future__ import annotations

from datetime import datetime, timedelta

from nats.aio.client import Client as Nats

from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.messages import Turn
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.idle import AT_ONCE, IdleAssembler
from ratchet.trajectory_collector.nats_streams import Streams
from tests.support.messages import AT, turn


class Settled(Streams):
    """Everything is settled."""

    def __init__(self) -> None:
        pass

    async def settled_until(self, stream: str, consumer: str) -> datetime:
        return AT


class Silent(Facts):
    """Trajectories of which only unanswered turns are stored."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.limits: list[int] = []
        self.read: list[str] = []

    async def idle(self, *, since: datetime, before: datetime, limit: int) -> list[tuple[str, str]]:
        self.limits.append(limit)
        return [("support", name) for name in self.names]

    async def turns(self, role: str, trajectory_id: str) -> list[Turn]:
        self.read.append(trajectory_id)
        return [turn(error="engine away", response=None)]


async def test_what_does_not_fit_is_looked_at_once_and_forgotten_when_it_is_no_longer_found() -> None:
    facts = Silent()
    bus = Bus(Nats(), name="test", contracts=Contracts.load(), replicas=1)
    hour = timedelta(hours=1)
    idle = IdleAssembler(bus, facts, Settled(), {"RL_TURNS": "collector-turns"}, idle=hour, lookback=hour)
    for found in (["one", "two"], ["one", "two"], ["two"], ["one", "two"]):
        facts.names = found
        await idle.tick()
    assert facts.read == ["one", "two", "one"]
    assert facts.limits == [AT_ONCE, AT_ONCE + 2, AT_ONCE + 2, AT_ONCE + 1]
