"""The audit of the ledger, and which messages a restore reads again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from ratchet.bus.testing import FakeBus, FakeClock
from ratchet.core.errors import BusUnavailable, RatchetError, WarehouseUnavailable
from ratchet.trajectory_collector.audit import Auditor
from ratchet.trajectory_collector.clickhouse_ledger import Audited, Generation, Ledger
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.ledger import LOST, Account, Balance, Entry, Gap, ranges
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from ratchet.trajectory_collector.restore import Restored, Restorer, lies_in, runs
from tests.support.fake_bus import alerts_on, fake_bus

BEFORE, BROKEN, AFTER = "RL_TRAJECTORIES", "RL_TURNS", "RL_REWARDS"
ALL = set(range(1, 41))
"""The sequences of every stream; all of them are settled."""


class Broker(Streams):
    """Every stream holds its messages from `first` on; one may fail."""

    def __init__(self, fault: RatchetError | None = None, first: int = 1) -> None:
        self._fault = fault
        self.first = first
        self.asked = 0

    async def progress(self, stream: str, consumer: str | None = None) -> Progress:
        self.asked += 1
        if stream == BROKEN and self._fault:
            raise self._fault
        return Progress(40, self.first, 40, 41 - self.first, 0, None, None, "made", refuses=True)


class OneLife(Generations):
    """Streams that were never made anew."""

    def __init__(self) -> None:
        pass

    async def verified(self, stream: str, consumer: str, progress: Progress) -> Generation:
        return Generation(progress.created, 0, 1)


class Books(Ledger):
    """Entries and rows by stream; one stream may fail."""

    def __init__(self, fault: RatchetError | None = None) -> None:
        self.entries: dict[str, dict[int, str]] = {}
        self.rows: dict[str, set[int]] = {}
        for stream in (BEFORE, BROKEN, AFTER):
            self.entries[stream] = dict.fromkeys(ALL, "stored")
            self.rows[stream] = set(ALL)
        self.audited_windows: list[tuple[str, int]] = []
        self._fault = fault

    async def write(self, account: Account, entries: Sequence[Entry], at: datetime) -> None:
        self.entries[account.stream] |= {entry.sequence: entry.outcome for entry in entries}

    async def balance(self, account: Account, window: int, span: Gap, since: datetime) -> Balance:
        if account.stream == BROKEN and self._fault:
            raise self._fault
        self.audited_windows.append((account.stream, window))
        every = range(span.first, span.last + 1)
        entries = self.entries[account.stream]
        absent = [s for s in every if entries.get(s) == "stored" and s not in self.rows[account.stream]]
        lost = sum(1 for s in every if entries.get(s) == LOST)
        return Balance(
            window, span, lost=lost, missing=ranges(s for s in every if s not in entries), absent=ranges(absent)
        )

    async def duplicates(self, account: Account, span: Gap) -> list[Gap]:
        return []

    async def fold(self, account: Account, balance: Balance, at: datetime) -> None:
        pass

    async def audited(self, account: Account) -> Audited:
        return Audited()

    async def oldest(self, account: Account, since: datetime) -> int | None:
        return 0


class Restoring(Restorer):
    """Brings back what the broker holds, but for a stream that fails."""

    def __init__(self, books: Books, fault: RatchetError | None = None) -> None:
        self._books = books
        self._fault = fault

    async def restore(self, stream: str, gaps: Sequence[Gap]) -> Restored:
        if stream == BROKEN and self._fault:
            raise self._fault
        back = {sequence for gap in gaps for sequence in range(gap.first, gap.last + 1)}
        self._books.entries[stream] |= dict.fromkeys(back, "stored")
        self._books.rows[stream] |= back
        return Restored(len(back))


def auditor(broker: Broker, books: Books, restorer: Restorer, bus: FakeBus | None = None) -> Auditor:
    return Auditor(
        broker,
        books,
        OneLife(),
        restorer,
        alerts_on(bus or fake_bus()),  # pyright: ignore[reportArgumentType]
        consumers={stream: f"collector-{stream}" for stream in (BEFORE, BROKEN, AFTER)},
        now=FakeClock(),
        width=10,
        windows=4,
    )


@pytest.mark.parametrize("where", ["broker", "ledger", "restorer"])
@pytest.mark.parametrize("fault", [BusUnavailable("away"), WarehouseUnavailable("away")])
async def test_stream_that_cannot_be_audited_leaves_others_audited_and_restored(
    where: str, fault: RatchetError
) -> None:
    books = Books(fault if where == "ledger" else None)
    for stream in (BROKEN, AFTER):
        del books.entries[stream][7]
    restorer = Restoring(books, fault if where == "restorer" else None)
    audit = auditor(Broker(fault if where == "broker" else None), books, restorer)
    await audit.tick()
    assert 7 not in books.entries[BROKEN]
    assert books.entries[AFTER][7] == "stored"
    assert (audit.balanced_up_to(BEFORE), audit.balanced_up_to(AFTER)) == (40, 40)


async def test_pass_under_way_is_no_imbalance() -> None:
    class Watching(Books):
        async def fold(self, account: Account, balance: Balance, at: datetime) -> None:
            reasons.append(await audit.check())

    reasons: list[str | None] = []
    books = Watching()
    audit = auditor(Broker(), books, Restoring(books))
    await audit.tick()
    assert set(reasons) == {None}


async def test_stream_that_cannot_be_audited_is_red() -> None:
    books = Books(WarehouseUnavailable("full"))
    audit = auditor(Broker(), books, Restoring(books))
    await audit.tick()
    assert await audit.check() == f"ledger does not balance: {BROKEN} is audited up to 0 of 40"


async def test_an_imbalance_is_red_alerted_and_not_trimmed_until_it_is_repaired() -> None:
    books, bus = Books(), fake_bus()
    books.rows[BROKEN] -= {15, 16}
    stuck = auditor(Broker(), books, Restoring(books, BusUnavailable("away")), bus)
    await stuck.tick()
    assert await stuck.check() == "ledger does not balance: RL_TURNS lacks 0 entries and 2 rows"
    assert stuck.balanced_up_to(BROKEN) <= 10
    books.rows[BROKEN] |= {15, 16}
    await stuck.tick()
    assert await stuck.check() is None
    assert stuck.balanced_up_to(BROKEN) == 40
    assert [(alert.key, alert.cleared) for alert in bus.published()] == [
        ("ledger:RL_TURNS", False),
        ("ledger:RL_TURNS", True),
    ]


async def test_message_that_stream_does_not_hold_is_lost_and_balances_visibly() -> None:
    books, bus = Books(), fake_bus()
    del books.entries[BROKEN][3]
    books.rows[BROKEN] -= {4}
    audit = auditor(Broker(first=9), books, Restoring(books), bus)
    await audit.tick()
    assert {s: books.entries[BROKEN][s] for s in (3, 4)} == {3: LOST, 4: LOST}
    assert await audit.check() is None
    assert "lost:RL_TURNS:made/0:3:4" in [alert.key for alert in bus.published()]


async def test_a_pass_audits_a_bounded_number_of_windows_and_in_turn_all_of_them() -> None:
    books = Books()
    audit = auditor(Broker(), books, Restoring(books))
    await audit.tick()
    for _ in range(4):
        books.audited_windows.clear()
        await audit.tick()
        assert len([one for one in books.audited_windows if one[0] == AFTER]) <= 1
    books.rows[AFTER] -= {12}
    for _ in range(5):
        await audit.tick()
    assert 12 in books.rows[AFTER]


SCATTERED = [Gap(sequence, sequence) for sequence in range(1, 2000, 2)]


def test_a_thousand_scattered_gaps_are_one_pass() -> None:
    assert runs(SCATTERED, 256) == [SCATTERED]


def test_gaps_far_apart_are_read_in_separate_passes() -> None:
    near, also_near, far = Gap(1, 10), Gap(20, 30), Gap(1000, 1000)

    assert runs([near, also_near, far], 9) == [[near, also_near], [far]]
    assert runs([near, also_near, far], 8) == [[near], [also_near], [far]]
    assert runs([], 9) == []


def test_only_messages_that_the_ledger_lacks_are_stored_again() -> None:
    run = [Gap(3, 5), Gap(8, 8)]

    assert [sequence for sequence in range(11) if lies_in(run, sequence)] == [3, 4, 5, 8]
