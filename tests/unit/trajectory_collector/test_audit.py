"""The audit of one stream does not depend on the others."""

from __future__ import annotations

import pytest

from ratchet.kernel.errors import BusUnavailable, RatchetError, Rejected, WarehouseUnavailable
from ratchet.trajectory_collector.audit import Auditor
from ratchet.trajectory_collector.clickhouse_facts import Facts
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from ratchet.trajectory_collector.restore import Restorer

BEFORE, BROKEN, AFTER = "RL_TRAJECTORIES", "RL_TURNS", "RL_REWARDS"


class Broker(Streams):
    """Every stream holds ten messages of at most ten, all settled; one may fail."""

    def __init__(self, fault: RatchetError | None = None) -> None:
        self._fault = fault
        self.trimmed: list[str] = []

    async def progress(self, stream: str, consumer: str) -> Progress:
        if stream == BROKEN and self._fault:
            raise self._fault
        return Progress(floor=10, first=1, last=10, messages=10, limit=10)

    async def trim(self, stream: str) -> int:
        self.trimmed.append(stream)
        return 10


class Ledger(Facts):
    """Accounts for so many messages of each stream; one may fail."""

    def __init__(self, accounted: dict[str, int], fault: RatchetError | None = None) -> None:
        self.accounted = accounted
        self._fault = fault

    async def accounted_up_to(self, stream: str, consumer: str, sequence: int) -> int:
        if stream == BROKEN and self._fault:
            raise self._fault
        return min(sequence, self.accounted[stream])


class Restoring(Restorer):
    """Brings back what one ledger lacks, but for a stream that fails."""

    def __init__(self, ledger: Ledger, fault: RatchetError | None = None) -> None:
        self._ledger = ledger
        self._fault = fault

    async def restore(self, stream: str, consumer: str, progress: Progress) -> None:
        if stream == BROKEN and self._fault:
            raise self._fault
        self._ledger.accounted[stream] = progress.floor


def auditor(broker: Broker, ledger: Ledger, restorer: Restorer) -> Auditor:
    consumers = {stream: f"collector-{stream}" for stream in (BEFORE, BROKEN, AFTER)}
    return Auditor(broker, ledger, consumers, restorer, trim_above=0.8)


@pytest.mark.parametrize("where", ["broker", "ledger", "restorer"])
@pytest.mark.parametrize("fault", [BusUnavailable("away"), WarehouseUnavailable("away"), Rejected("no such table")])
async def test_a_stream_that_cannot_be_audited_leaves_the_others_audited_restored_and_trimmed(
    where: str, fault: RatchetError
) -> None:
    broker = Broker(fault if where == "broker" else None)
    ledger = Ledger({BEFORE: 10, BROKEN: 3, AFTER: 7}, fault if where == "ledger" else None)
    audit = auditor(broker, ledger, Restoring(ledger, fault if where == "restorer" else None))
    await audit.tick()
    assert ledger.accounted == {BEFORE: 10, BROKEN: 3, AFTER: 10}
    assert broker.trimmed == [BEFORE, AFTER]


async def test_a_stream_that_lacks_messages_turns_readiness_red_until_they_are_back() -> None:
    ledger = Ledger({BEFORE: 10, BROKEN: 3, AFTER: 10})
    stuck = auditor(Broker(), ledger, Restoring(ledger, BusUnavailable("away")))
    await stuck.tick()
    assert await stuck.check() == "ledger does not balance: RL_TURNS lacks 7"
    ledger.accounted[BROKEN] = 10
    await stuck.tick()
    assert await stuck.check() is None
