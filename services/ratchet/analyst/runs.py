"""Runs: every hour, and when they are asked for, the newest windows of each role are looked at.

A run is decided by one write: its patterns and steps stand in `analyst.looked.<role>`, written by compare-and-set,
before any of them is written in its own place. Of two analysts that look at the same one loses that write and drops
what it has. Who leads next goes on with what is decided and not written: patterns are what they are, and steps have ids
of their own, so that a kill at any place repeats nothing that counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from msgspec.structs import replace

from ratchet.analyst import metrics
from ratchet.analyst.domain import looking
from ratchet.analyst.domain.alerts import alerted
from ratchet.analyst.domain.looking import Looked, Mined, Pending
from ratchet.analyst.domain.patterns import DISMISSED, OPEN, settled
from ratchet.analyst.domain.windows import FEW, LENGTHS, MANY, Windows, fitting, windows
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.plans import ODD
from ratchet.analyst.questions import Place, Question
from ratchet.bus.kv import Entry
from ratchet.core.contract import Alert
from ratchet.core.contract.http.analyst import AnalysisOut
from ratchet.core.contract.learning import Pattern
from ratchet.core.errors import Conflict, RatchetError, Unreadable
from ratchet.core.service.leadership import Lead

log = structlog.get_logger()

LOOKED_AT = "these windows were looked at before: nothing is tested anew"
LOOK_S = 300.0
"""Between looks whether windows have ended that were not looked at."""


class Stored(Protocol):
    """What is stored of trajectories."""

    async def roles(self, since: datetime) -> list[str]:
        """Roles of which trajectories ended since then."""
        ...

    async def count(self, role: str, windows: Windows) -> tuple[int, int]:
        """Trajectories of both windows."""
        ...


class Runs:
    """Raises what stores do."""

    def __init__(  # noqa: PLR0913, PLR0917 - the connections
        self,
        store: PatternStore,
        trail: Trail,
        lead: Lead,
        stored: Stored,
        mine: Callable[[Question], Awaitable[Mined]],
        stable: Callable[[str], Awaitable[str | None]],
        alerts: Callable[[str], Awaitable[Sequence[Alert]]],
        warehouse: Place,
        now: Callable[[], datetime],
    ) -> None:
        """`stable`: the name of the policy that serves a role; `alerts`: the newest on each of its rewards' levels;
        `warehouse`: how a process of its own reaches it."""
        self._store, self._trail, self._lead, self._stored = store, trail, lead, stored
        self._mine, self._stable, self._now = mine, stable, now
        self._alerts, self._warehouse = alerts, warehouse
        self._one_at_a_time = asyncio.Lock()

    async def look(self) -> None:
        """Run for every role of which windows have ended. One role that fails holds up no other."""
        failed = False
        for role in await self._stored.roles(self._now() - 2 * LENGTHS[-1]):
            try:
                await self.run(role)
            except (RatchetError, *ODD) as error:
                failed = True
                log.error("a role was not looked at", role=role, reason=str(error), exc_info=error)
        if not failed:
            metrics.LOOKED.set_to_current_time()

    async def run(self, role: str, *, asked: bool = False) -> AnalysisOut:
        """Look at the newest windows of a role; those that were looked at test nothing anew. Raises `NotLeading`."""
        async with self._one_at_a_time:
            await self._lead.confirm()
            entry = await self._finished(role)
            looked = looking.at(entry.value if entry else None, self._now())
            chosen, counts = await self._windows(role, asked=asked)
            revision = entry.revision if entry else None
            if min(counts) < FEW:
                note = _too_few(chosen, counts)
            elif looked.last is not None and looked.windows is not None and chosen.until <= looked.windows.until:
                answer = replace(looked.last, opened=[], closed=[], note=LOOKED_AT)
                return await self._untested(looked, revision, chosen, answer)
            elif (note := looking.refusal(looked, asked=asked)) is None:
                return await self._decided(role, looked, revision, chosen, asked=asked)
            answer = looking.untested_answer(role, chosen, counts, note)
            return await self._untested(looked, revision, chosen, answer)

    async def _windows(self, role: str, *, asked: bool) -> tuple[Windows, tuple[int, int]]:
        """The windows to look at, and how many trajectories they have: the longest ones where all have too few."""
        now, counts = self._now(), dict[timedelta, tuple[int, int]]()
        for length in LENGTHS:
            counts[length] = await self._stored.count(role, windows(length, now, asked=asked))
            if min(counts[length]) >= MANY:
                break
        length = fitting(counts) or LENGTHS[-1]
        return windows(length, now, asked=asked), counts[length]

    async def _untested(
        self, looked: Looked, revision: int | None, chosen: Windows, answer: AnalysisOut
    ) -> AnalysisOut:
        """What alerts alone open."""
        role, known = answer.role, [entry.value for entry in await self._store.every(lambda name: name == answer.role)]
        warned = await self._warned(role, known, (), chosen)
        outcome = settled(known, warned, {}, chosen, await self._stable(role))
        answer = replace(answer, known=looking.open_ids(known))
        changed = tuple(pattern for pattern in outcome.changed if pattern not in known)
        if not changed:
            return answer
        events = looking.changes(role, chosen, outcome, self._now())
        pending = Pending(patterns=changed, events=tuple(events))
        await self._lead.confirm()
        with suppress(Conflict):  # another analyst has looked at the same
            await self._store.keep_looked(role, replace(looked, pending=pending), revision)
            answer = replace(answer, opened=[pattern.pattern_id for pattern in outcome.opened])
        await self._finished(role)
        return answer

    async def _warned(
        self, role: str, known: Sequence[Pattern], claims: Sequence[Pattern], of: Windows
    ) -> list[Pattern]:
        alerts = [alert for alert in await self._alerts(role) if alert.role == role]
        return alerted(alerts, known, claims, of)

    async def _decided(
        self, role: str, looked: Looked, revision: int | None, chosen: Windows, *, asked: bool
    ) -> AnalysisOut:
        known = [entry.value for entry in await self._store.every(lambda name: name == role)]
        mined = await self._mine(
            Question(
                role=role,
                windows=chosen,
                alpha=looking.RATE * looking.part_of(looked, chosen, asked=asked),
                discoveries=looked.discoveries,
                seed=looking.seed_of(role, chosen),
                patterns=tuple(pattern for pattern in known if pattern.state == OPEN),
                dismissed=tuple(pattern.pattern_id for pattern in known if pattern.state == DISMISSED),
                warehouse=self._warehouse,
            )
        )
        warned = await self._warned(role, known, mined.patterns, chosen)
        outcome = settled(known, (*mined.patterns, *warned), mined.seen, chosen, await self._stable(role))
        steps = looking.steps(role, chosen, mined, outcome, self._now())
        events = (*steps, *looking.dismissed_since(looked, known))
        answer = looking.answer_of(role, chosen, mined, outcome, known)
        pending = Pending(patterns=tuple(outcome.changed), events=events)
        await self._lead.confirm()
        try:
            await self._store.keep_looked(role, looking.after(looked, chosen, answer, pending, asked=asked), revision)
        except Conflict:  # another analyst has looked at the same
            other = await self._finished(role)
            return other.value.last if other and other.value.last else answer
        if not asked:  # windows by the clock hold each trajectory once
            metrics.EPISODES.labels(role).inc(mined.trajectories[1])
        metrics.HYPOTHESES.labels(role).inc(mined.tested)
        await self._finished(role)
        return answer

    async def _finished(self, role: str) -> Entry[Looked] | None:
        """How far the role was looked at, with all written that was decided. What cannot be read begins anew."""
        try:
            entry = await self._store.looked(role)
        except Unreadable as error:
            log.error("a look at a role cannot be read: its horizon begins anew", role=role, reason=str(error))
            return Entry(Looked(began_at=self._now()), error.revision)
        if entry is None or entry.value.pending is None:
            return entry
        pending = entry.value.pending
        for pattern in pending.patterns:
            await self._write(pattern)
        await self._trail.publish(pending.events)
        done = replace(entry.value, pending=None)
        try:
            return Entry(done, await self._store.keep_looked(role, done, entry.revision))
        except Conflict:  # another analyst wrote the same
            return await self._finished(role)

    async def _write(self, pattern: Pattern) -> None:
        """Write a pattern, unless it was written already or a person dismissed it meanwhile."""
        while True:
            try:
                entry = await self._store.get(pattern.role, pattern.pattern_id)
                revision = entry.revision if entry else None
            except Unreadable as error:
                entry, revision = None, error.revision
            if entry is not None and (entry.value == pattern or entry.value.state == DISMISSED):
                return
            await self._lead.confirm()
            with suppress(Conflict):
                await self._store.put(pattern, revision)
                return


def _too_few(of: Windows, counts: tuple[int, int]) -> str:
    return (
        f"too few trajectories to tell: {counts[0]} and {counts[1]} in the two windows of {of.length.days} days, and at"
        f" least {FEW} are needed in each"
    )
