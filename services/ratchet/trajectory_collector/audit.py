"""Compares the ledger with the broker's ack floor and with the rows in the fact tables, window by window.

A pass audits the messages settled since the last pass, every window that did not balance, and one older window in turn,
so that its cost does not grow with history and it also notices rows that vanish later. It reads missing messages again
from the stream; a message that the stream no longer holds is `lost`: reported, counted, visible for ever, but balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.core.errors import RatchetError
from ratchet.core.service.alerts import Alerts
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_ledger import FOREVER, Generation, Ledger
from ratchet.trajectory_collector.generations import Generations
from ratchet.trajectory_collector.ledger import DEAD, LOST, Account, Balance, Entry, Gap, size, span_of, window_of
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from ratchet.trajectory_collector.restore import Restorer

log = structlog.get_logger()

MARGIN = timedelta(days=2)
"""The audit skips rows that expire this soon: ClickHouse removes rows of one age at different moments."""


@dataclass(slots=True)
class _Position:
    """How far the audit of one stream is."""

    generation: Generation
    up_to: int = 0
    """Every sequence up to here was audited."""
    uneven: dict[int, Balance] = field(default_factory=dict[int, Balance])
    """Windows that did not balance in their last audit; all lie up to `up_to`."""
    older: int | None = None
    """The older window whose turn is next; None: begin with the oldest."""
    seen: Progress | None = None
    """The stream as of the last pass: as long as it is unchanged, its generation is."""
    due: int = 0
    """What was settled up to here before the last pass that ended, well or not."""

    @property
    def problem(self) -> str | None:
        """Why the stream's ledger does not balance; None when it does."""
        missing = sum(size(balance.missing) for balance in self.uneven.values())
        absent = sum(size(balance.absent) for balance in self.uneven.values())
        if missing or absent:
            return f"lacks {missing} entries{f' and {absent} rows' if absent else ''}"
        if self.up_to < self.due:
            return f"is audited up to {self.up_to} of {self.due}"
        return None


@dataclass(frozen=True)
class Auditor:
    """Every settled message must have exactly one entry in the ledger, and its row; otherwise readiness turns red."""

    streams: Streams
    ledger: Ledger
    generations: Generations
    restorer: Restorer
    alerts: Alerts
    consumers: Mapping[str, str]
    """Durable by stream."""
    now: Callable[[], datetime]
    width: int
    """Sequences in a window."""
    windows: int
    """Most windows of a stream in one pass."""
    facts_ages: Mapping[str, timedelta | None] = field(default_factory=dict[str, timedelta | None])
    """By stream, the age up to which none of its rows has expired or gone to the archive; None for never."""
    ledger_age: timedelta | None = None
    """The same for entries of the ledger."""
    _positions: dict[str, _Position] = field(default_factory=dict[str, _Position], init=False)

    async def tick(self) -> None:
        """Audit every stream once. A stream that cannot be audited now does not hide the others."""
        await self.alerts.publish_pending()
        for stream, consumer in self.consumers.items():
            try:
                await self._audit_stream(stream, consumer)
            except RatchetError as error:
                log.warning("stream not audited", stream=stream, reason=str(error))

    async def check(self) -> str | None:
        """Readiness: the streams whose ledger does not balance, or was not audited up to the end yet."""
        broken = [f"{stream} {position.problem}" for stream, position in self._positions.items() if position.problem]
        return "ledger does not balance: " + ", ".join(broken) if broken else None

    def balanced_up_to(self, stream: str) -> int:
        """Every message of the stream up to here is accounted for and, if it is stored, has its row."""
        position = self._positions.get(stream)
        if position is None:
            return 0
        first = min(position.uneven, default=None)
        return position.up_to if first is None else min(position.up_to, first * self.width)

    async def _audit_stream(self, stream: str, consumer: str) -> None:
        progress = await self.streams.progress(stream, consumer)
        position = self._positions.get(stream)
        if position is None or position.seen != progress:
            generation = await self.generations.verified(stream, consumer, progress)
            if position is None or position.generation != generation:
                audited = await self.ledger.audited(Account(stream, consumer, generation.name))
                up_to = audited.up_to if audited.uneven is None else audited.uneven * self.width
                position = self._positions[stream] = _Position(generation, max(generation.first - 1, up_to))
            position.seen = progress
        try:
            await self._audit_windows(Account(stream, consumer, position.generation.name), position, progress)
        finally:
            position.due = progress.floor

    async def _audit_windows(self, account: Account, position: _Position, progress: Progress) -> None:
        for window in sorted(position.uneven)[: self.windows]:
            await self._audit_window(account, position, window, progress)
        for _ in range(self.windows):  # the messages that were settled since the last pass
            if position.up_to >= progress.floor:
                break
            window = window_of(position.up_to + 1, self.width)
            await self._audit_window(account, position, window, progress)
            position.up_to = min(progress.floor, (window + 1) * self.width)
        await self._audit_older(account, position, progress)
        await self._report(account.stream, position)

    async def _audit_older(self, account: Account, position: _Position, progress: Progress) -> None:
        """Audit an older window, and the windows after it for as long as they did not balance."""
        if position.up_to < position.generation.first:  # nothing was settled: there are none to look for
            return
        for _ in range(self.windows):
            window = position.older
            if window is None:
                window = await self.ledger.oldest(account, self._not_expired(self.ledger_age))
            if window is None or window > window_of(max(1, position.up_to), self.width):
                position.older = None
                return
            position.older = window + 1
            if await self._audit_window(account, position, window, progress):
                return

    async def _audit_window(self, account: Account, position: _Position, window: int, progress: Progress) -> bool:
        """Compare one window, repair it where that is possible, and write its balance; returns whether it balanced.

        An imbalance is reported before the repair: a restore takes its time, or may fail.
        """
        span = span_of(window, self.width, position.generation.first, max(progress.floor, position.up_to))
        since = self._not_expired(self.facts_ages.get(account.stream))
        before = balance = await self.ledger.balance(account, window, span, since)
        if not before.is_even:
            position.uneven[window] = before
            await self._report(account.stream, position)
            await self._repair(account, before, progress)
            balance = await self.ledger.balance(account, window, span, since)
        position.uneven.pop(window, None)
        if not balance.is_even:
            position.uneven[window] = balance
        if not before.is_even or span.last > position.up_to:
            await self.ledger.fold(account, balance, self.now())
        return before.is_even

    async def _repair(self, account: Account, balance: Balance, progress: Progress) -> None:
        """Read the messages again that the stream holds; those that it does not hold are lost."""
        gaps, first = balance.gaps, progress.first
        held = [Gap(max(gap.first, first), gap.last) for gap in gaps if gap.last >= first]
        lost = [Gap(gap.first, min(gap.last, first - 1)) for gap in gaps if gap.first < first]
        if held:
            # The row that vanished may have come with a later report of its trajectory: those are read again as well.
            span = Gap(held[0].first, progress.floor)
            later = await self.ledger.duplicates(account, span) if balance.absent else []
            to_read = merged([*held, *(gap for gap in later if gap.first >= first)])
            restored = await self.restorer.restore(account.stream, to_read)
            lost += [gap for gap in restored.unseen if any(lies_within(gap, bounds) for bounds in held)]
        if not lost:
            return
        entries = [Entry(sequence, LOST) for gap in lost for sequence in range(gap.first, gap.last + 1)]
        await self.ledger.write(account, entries, self.now())
        metrics.STORED.labels(account.stream, LOST).inc(len(entries))
        log.error("messages are lost", stream=account.stream, messages=len(entries), first=lost[0].first)
        await self.alerts.raise_alert(
            f"lost:{account.stream}:{account.generation}:{lost[0].first}:{lost[-1].last}",
            f"{len(entries)} messages of {account.stream}, from {lost[0].first} to {lost[-1].last}, are neither in"
            " ClickHouse nor in the stream any more.",
            {"stream": account.stream, "messages": len(entries)},
        )

    def _not_expired(self, age: timedelta | None) -> datetime:
        """The instant after which stored rows have surely not expired."""
        return self.now() - age + MARGIN if age else FOREVER

    async def _report(self, stream: str, position: _Position) -> None:
        metrics.MISSING.labels(stream).set(sum(size(balance.missing) for balance in position.uneven.values()))
        metrics.ABSENT.labels(stream).set(sum(size(balance.absent) for balance in position.uneven.values()))
        for outcome in (DEAD, LOST):
            metrics.STORED.labels(stream, outcome)  # from 0 on, so that the first one shows as an increase
        if position.uneven:
            problem = f"The ledger does not balance: {stream} {position.problem}."
            await self.alerts.raise_alert(f"ledger:{stream}", problem)
        else:
            await self.alerts.clear_alert(f"ledger:{stream}")


def merged(gaps: list[Gap]) -> list[Gap]:
    """Ranges in order, those that touch or overlap as one."""
    ordered: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.first):
        if ordered and gap.first <= ordered[-1].last + 1:
            ordered[-1] = Gap(ordered[-1].first, max(ordered[-1].last, gap.last))
        else:
            ordered.append(gap)
    return ordered


def lies_within(gap: Gap, other: Gap) -> bool:
    """Whether all of a range lies in another one."""
    return other.first <= gap.first and gap.last <= other.last
