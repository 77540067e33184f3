"""Holds the ledger against what the broker says was settled and against the rows in the fact tables, window by window.

A pass looks at what was settled since the last one, at every window that did not balance, and at one older window in
turn, so that its cost does not grow with history and rows that vanish later are noticed too. What is missing is read
again from the stream; what the stream no longer holds is `lost`: told, counted, and visible for ever, but balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.errors import RatchetError
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.alerts import Alerts
from ratchet.trajectory_collector.clickhouse_ledger import FOREVER, Ledger, Life
from ratchet.trajectory_collector.incarnations import Incarnations
from ratchet.trajectory_collector.ledger import DEAD, LOST, Account, Balance, Entry, Gap, size, span_of, window_of
from ratchet.trajectory_collector.nats_streams import Progress, Streams
from ratchet.trajectory_collector.restore import Restorer

log = structlog.get_logger()

MARGIN = timedelta(days=2)
"""What will expire this soon is not looked at: ClickHouse removes rows of one age at different moments."""


@dataclass(frozen=True, slots=True)
class AuditRules:
    """How much one pass looks at."""

    width: int = 16_384
    """Sequences in a window."""
    windows: int = 16
    """Most windows of a stream that one pass looks at."""
    facts_age: timedelta | None = None
    """Age at which rows of fact tables expire; None for never."""
    ledger_age: timedelta | None = None
    """The same for entries of the ledger."""


@dataclass(slots=True)
class _Position:
    """How far the audit of one account is."""

    life: Life
    up_to: int = 0
    """Everything up to here was looked at."""
    uneven: dict[int, Balance] = field(default_factory=dict[int, Balance])
    """Windows that did not balance when they were looked at last; all lie up to `up_to`."""
    again: int | None = None
    """The older window that is looked at next; None: begin with the oldest."""
    seen: Progress | None = None
    """The stream as of the last pass: while it is the same, its life is."""


class Auditor:
    """Every settled message must have exactly one entry in the ledger, and its row; otherwise readiness turns red."""

    def __init__(  # noqa: PLR0913 - its collaborators, by name
        self,
        streams: Streams,
        ledger: Ledger,
        incarnations: Incarnations,
        restorer: Restorer,
        alerts: Alerts,
        *,
        consumers: Mapping[str, str],
        now: Callable[[], datetime],
        rules: AuditRules = AuditRules(),
    ) -> None:
        """`consumers`: durable by stream."""
        self._streams = streams
        self._ledger = ledger
        self._incarnations = incarnations
        self._restorer = restorer
        self._alerts = alerts
        self._consumers = consumers
        self._now = now
        self._rules = rules
        self._positions: dict[str, _Position] = {}

    async def tick(self) -> None:
        """Audit every stream once. A stream that cannot be audited now does not hide the others."""
        await self._alerts.retry()
        for stream, consumer in self._consumers.items():
            try:
                await self._audit(stream, consumer)
            except RatchetError as error:
                log.warning("stream not audited", stream=stream, reason=str(error))

    async def check(self) -> str | None:
        """Readiness: the streams whose ledger does not balance, or was not audited up to the end yet."""
        broken = [said for stream, position in self._positions.items() if (said := _complaint(stream, position))]
        return "ledger does not balance: " + ", ".join(broken) if broken else None

    def balanced_up_to(self, stream: str) -> int:
        """Every message of the stream up to here is accounted for and, if it is stored, has its row."""
        position = self._positions.get(stream)
        if position is None:
            return 0
        first = min(position.uneven, default=None)
        return position.up_to if first is None else min(position.up_to, first * self._rules.width)

    async def _audit(self, stream: str, consumer: str) -> None:
        progress = await self._streams.progress(stream, consumer)
        position = self._positions.get(stream)
        if position is None or position.seen != progress:
            life = await self._incarnations.verified(stream, consumer, progress)
            position = await self._position(Account(stream, consumer, life.incarnation), life)
            position.seen = progress
        account = Account(stream, consumer, position.life.incarnation)
        for window in sorted(position.uneven)[: self._rules.windows]:
            await self._look(account, position, window, progress)
        await self._go_on(account, position, progress)
        await self._look_back(account, position, progress)
        await self._say(stream, position)

    async def _position(self, account: Account, life: Life) -> _Position:
        """Where the last pass ended, by whomever it was."""
        position = self._positions.get(account.stream)
        if position is None or position.life != life:
            audited = await self._ledger.audited(account)
            up_to = audited.up_to if audited.uneven is None else audited.uneven * self._rules.width
            position = self._positions[account.stream] = _Position(life, max(life.first - 1, up_to))
        return position

    async def _go_on(self, account: Account, position: _Position, progress: Progress) -> None:
        """Look at what was settled since the last pass."""
        for _ in range(self._rules.windows):
            if position.up_to >= progress.floor:
                return
            window = window_of(position.up_to + 1, self._rules.width)
            await self._look(account, position, window, progress)
            position.up_to = min(progress.floor, (window + 1) * self._rules.width)

    async def _look_back(self, account: Account, position: _Position, progress: Progress) -> None:
        """Look at an older window, and at the ones after it for as long as something was wrong."""
        for _ in range(self._rules.windows):
            window = position.again
            if window is None:
                age = self._rules.ledger_age
                since = self._now() - age + MARGIN if age else FOREVER
                window = await self._ledger.oldest(account, since)
            if window is None or window > window_of(max(1, position.up_to), self._rules.width):
                position.again = None
                return
            position.again = window + 1
            if not await self._look(account, position, window, progress):
                return

    async def _look(self, account: Account, position: _Position, window: int, progress: Progress) -> bool:
        """Compare one window, mend what can be mended, and write down its balance; returns whether something was wrong.

        What is wrong is told before it is mended: a restore takes its time, or may fail.
        """
        span = span_of(window, self._rules.width, position.life.first, max(progress.floor, position.up_to))
        found = await self._balance(account, window, span)
        mended = found
        if not found.is_even:
            position.uneven[window] = found
            await self._say(account.stream, position)
            await self._mend(account, found, progress)
            mended = await self._balance(account, window, span)
        position.uneven.pop(window, None)
        if not mended.is_even:
            position.uneven[window] = mended
        if not found.is_even or span.last > position.up_to:
            await self._ledger.fold(account, mended, self._now())
        return not found.is_even

    async def _balance(self, account: Account, window: int, span: Gap) -> Balance:
        age = self._rules.facts_age
        return await self._ledger.balance(account, window, span, self._now() - age + MARGIN if age else FOREVER)

    async def _mend(self, account: Account, found: Balance, progress: Progress) -> None:
        """Read again what the stream holds; what it does not hold is lost."""
        gaps = found.gaps
        held = [Gap(max(gap.first, progress.first), gap.last) for gap in gaps if gap.last >= progress.first]
        gone = [Gap(gap.first, min(gap.last, progress.first - 1)) for gap in gaps if gap.first < progress.first]
        if held:
            # A row that is gone may have been the second telling of its trajectory: those are read again as well.
            later = await self._ledger.duplicates(account, Gap(held[0].first, progress.floor)) if found.absent else []
            looked_for = merged([*held, *(gap for gap in later if gap.first >= progress.first)])
            restored = await self._restorer.restore(account.stream, looked_for)
            gone += [gap for gap in restored.unseen if any(lies_within(gap, one) for one in held)]
        if gone:
            await self._lose(account, gone)

    async def _lose(self, account: Account, gone: list[Gap]) -> None:
        now = self._now()
        entries = [Entry(sequence, LOST) for gap in gone for sequence in range(gap.first, gap.last + 1)]
        await self._ledger.write(account, entries, now)
        metrics.STORED.labels(account.stream, LOST).inc(len(entries))
        log.error("messages are lost", stream=account.stream, messages=len(entries), first=gone[0].first)
        await self._alerts.tell(
            f"lost:{account.stream}:{account.incarnation}:{gone[0].first}:{gone[-1].last}",
            f"{len(entries)} messages of {account.stream}, from {gone[0].first} to {gone[-1].last}, are neither in"
            " ClickHouse nor in the stream any more.",
            {"stream": account.stream, "messages": len(entries)},
        )

    async def _say(self, stream: str, position: _Position) -> None:
        missing = sum(size(balance.missing) for balance in position.uneven.values())
        absent = sum(size(balance.absent) for balance in position.uneven.values())
        metrics.MISSING.labels(stream).set(missing)
        metrics.ABSENT.labels(stream).set(absent)
        for outcome in (DEAD, LOST):
            metrics.STORED.labels(stream, outcome)  # from 0 on, so that the first one shows as an increase
        if position.uneven:
            await self._alerts.tell(f"ledger:{stream}", f"The ledger does not balance: {_complaint(stream, position)}.")
        else:
            await self._alerts.clear(f"ledger:{stream}")


def merged(gaps: list[Gap]) -> list[Gap]:
    """Ranges in order, those that touch or overlap as one."""
    found: list[Gap] = []
    for gap in sorted(gaps, key=lambda one: one.first):
        if found and gap.first <= found[-1].last + 1:
            found[-1] = Gap(found[-1].first, max(found[-1].last, gap.last))
        else:
            found.append(gap)
    return found


def lies_within(gap: Gap, other: Gap) -> bool:
    """Whether all of a range lies in another one."""
    return other.first <= gap.first and gap.last <= other.last


def _complaint(stream: str, position: _Position) -> str | None:
    """What is wrong with a stream's ledger."""
    missing = sum(size(balance.missing) for balance in position.uneven.values())
    absent = sum(size(balance.absent) for balance in position.uneven.values())
    if missing or absent:
        rows = f" and {absent} rows" if absent else ""
        return f"{stream} lacks {missing} entries{rows}"
    if position.seen is not None and position.up_to < position.seen.floor:
        return f"{stream} is audited up to {position.up_to} of {position.seen.floor}"
    return None
