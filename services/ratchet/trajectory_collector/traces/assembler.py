"""Turns traces that are over into turns, trajectories and feedback, on the streams that these always come by.

Everything follows from the rows of `spans`: what this process remembers it reads again after a restart. Any number of
collectors may do this at once, and again after a crash: they publish the same messages, which are stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.bus.connection import Bus
from ratchet.core.contract import Spans, Trajectory, named_id
from ratchet.core.contract.spans import run_id
from ratchet.core.errors import ContractError, Unavailable
from ratchet.core.rules.chat import ChatError
from ratchet.dialects.telemetry.names import SWITCH
from ratchet.dialects.telemetry.span_tree import Calls, Tree, calls_of, tree_of
from ratchet.trajectory_collector import metrics
from ratchet.trajectory_collector.clickhouse_facts import IDS_AT_ONCE, Facts
from ratchet.trajectory_collector.domain import Inference, Run
from ratchet.trajectory_collector.handlers import report_gaps
from ratchet.trajectory_collector.nats_streams import Streams
from ratchet.trajectory_collector.traces.clickhouse_spans import Parts, Place, StoredSpans, TraceKey
from ratchet.trajectory_collector.traces.closing import Heard, Life
from ratchet.trajectory_collector.traces.folding import Folded, fold
from ratchet.trajectory_collector.traces.judgements import judged

log = structlog.get_logger()

STREAM = "RL_SPANS"
SIDE_BY_SIDE = 8
"""Traces that are in memory at once."""


@dataclass(slots=True)
class _Known:
    """A trace, and what was made of it."""

    life: Life
    made: datetime | None = None
    """The closing or the revision that was published."""
    judged: datetime | None = None
    """The last evaluation that was."""

    def is_due(self, now: datetime) -> bool:
        """Whether it is over, or was revised, since it was made."""
        due = self.life.due(now)
        return due is not None and (self.made is None or due > self.made)

    @property
    def is_judged(self) -> bool:
        """Whether an evaluation came since it was made."""
        late = self.life.judged
        return self.made is not None and late is not None and (self.judged is None or late > self.judged)


@dataclass
class TraceAssembler:
    """Listens to what is stored of traces, and makes each once it is over. A start begins `lookback` ago."""

    bus: Bus
    facts: Facts
    spans: StoredSpans
    streams: Streams
    consumer: str
    """Durable of the collector on the stream of spans."""
    inference: Inference
    lookback: timedelta
    _known: dict[TraceKey, _Known] = field(default_factory=dict[TraceKey, _Known], init=False)
    _heard: Place | None = field(default=None, init=False)
    """The last part that was heard of."""

    async def tick(self) -> None:
        """Publish what the traces add up to that are over, and evaluations that came later. Raises `Unavailable`."""
        until = await self.streams.settled_until(STREAM, self.consumer)
        await self._listen(until)
        due = [key for key, known in self._known.items() if known.is_due(until)]
        for keys in _in_parts(await self._unpublished(due, until), SIDE_BY_SIDE):
            await asyncio.gather(*(self._make(key, until) for key in keys))
        for key, known in self._known.items():
            if known.is_judged:
                await self._judge(key, known)
        for key in [key for key, known in self._known.items() if known.life.is_over(until)]:
            del self._known[key]

    async def _listen(self, until: datetime) -> None:
        """Take in every part that was stored until an instant."""
        is_first, complete = self._heard is None, set[TraceKey]()
        after = self._heard or Place(until - self.lookback)
        while True:
            parts = await self.spans.heard(after, until)
            new = {key for _, key, _ in parts if key not in self._known} if not is_first else set[TraceKey]()
            for keys in _in_parts(sorted(new), IDS_AT_ONCE):  # one may have been forgotten: its first parts count, too
                for _, key, heard in await self.spans.history(keys, until):
                    self._hear(key, heard)
            complete |= new
            for _, key, heard in parts:
                if key not in complete:
                    self._hear(key, heard)
            if not parts:
                break
            after = parts[-1][0]
        self._heard = after

    def _hear(self, key: TraceKey, heard: Heard) -> None:
        known = self._known.get(key)
        if known is None:
            self._known[key] = _Known(Life.of(heard))
            return
        before = known.life.late, known.life.too_late
        known.life.hear(heard)
        metrics.SPANS.labels("late").inc(known.life.late - before[0])
        metrics.SPANS.labels("too_late").inc(known.life.too_late - before[1])

    async def _unpublished(self, due: Sequence[TraceKey], until: datetime) -> list[TraceKey]:
        """Those that no collector has published, before a restart or beside this one. The others are noted as made."""
        left: list[TraceKey] = []
        for keys in _in_parts(due, IDS_AT_ONCE):
            published = await self.spans.published(keys)
            for key in keys:
                known, at = self._known[key], published.get(key)
                if at is not None and at >= (instant := known.life.due(until) or at):
                    known.made = instant
                else:
                    left.append(key)
        return left

    async def _make(self, key: TraceKey, until: datetime) -> None:
        """Publish a trace that is over. One that cannot be assembled is counted, and the others go on."""
        known = self._known[key]
        due = known.life.due(until)
        if due is None:
            return
        is_revision, judged_until = due != known.life.closes_at, known.life.judged
        if known.life.calls:
            try:
                await self._publish(key, due, known.life, is_revision=is_revision)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - the boundary: what one sender sent must not stop the service
                _count_unassembled(key, error)
        known.made, known.judged = due, judged_until if is_revision else None

    async def _publish(self, key: TraceKey, due: datetime, life: Life, *, is_revision: bool) -> None:
        parts, tree, calls = await self._read(key, due, life)
        _report(key, parts, tree, calls)
        if not calls.whole:
            metrics.TRACES.labels("empty").inc()
            return
        folded = await self._folded(key, tree, calls, is_revision=is_revision)
        report_gaps(folded.turns[0].trajectory_id, Run(folded.turns), folded.assembled)
        await self.bus.publish_all(folded.turns)
        await self.bus.publish_all(list(judged(*key, tree, folded)))
        await self._publish_trajectories(folded.assembled.trajectories, due)
        metrics.TRACES.labels("revised" if is_revision else "assembled").inc()

    async def _judge(self, key: TraceKey, known: _Known) -> None:
        """Publish the evaluations of a trace that came after it was made."""
        at = known.life.judged
        assert at is not None  # noqa: S101 - `is_judged`
        try:
            _, tree, calls = await self._read(key, at, known.life)
            if calls.whole:
                folded = await self._folded(key, tree, calls, is_revision=True)
                await self.bus.publish_all(list(judged(*key, tree, folded)))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            _count_unassembled(key, error)
        known.judged = at

    async def _read(self, key: TraceKey, until: datetime, life: Life) -> tuple[Parts, Tree, Calls]:
        parts = await self.spans.parts(key, until)
        spans, answers = await self.spans.recorded(key[1], life.first, until)
        return parts, *await asyncio.to_thread(_tree_and_calls, parts.batches, spans, answers)

    async def _folded(self, key: TraceKey, tree: Tree, calls: Calls, *, is_revision: bool) -> Folded:
        earlier = Run([])
        if is_revision:
            async for _, run in self.facts.runs([(key[0], run_id(key[1]))]):
                earlier = run
        return await asyncio.to_thread(fold, *key, tree, calls, self.inference, earlier)

    async def _publish_trajectories(self, trajectories: Sequence[Trajectory], due: datetime) -> None:
        """Under an id of this version: the broker must not take a revision for a repetition.

        The run's own comes last: that it is stored says, after a restart, that everything is published.
        """
        for trajectory in reversed(trajectories):
            version = named_id("telemetry", trajectory.event_id, due.isoformat())
            await self.bus.publish_record(self.bus.seal(trajectory).with_message_id(version))


def _in_parts(keys: Sequence[TraceKey], size: int) -> list[Sequence[TraceKey]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _tree_and_calls(batches: Sequence[Spans], spans: frozenset[str], answers: frozenset[str]) -> tuple[Tree, Calls]:
    """`spans`, `answers`: ids under which the gateway has recorded calls."""
    tree = tree_of(batches)
    marked = {
        key
        for key, span in tree.spans.items()
        if span.is_recorded or key[1] in spans or (span.provider is not None and span.provider.id in answers)
    }
    return tree, calls_of(tree, marked)


def _report(key: TraceKey, parts: Parts, tree: Tree, calls: Calls) -> None:
    """Count and log what of a trace becomes nothing, and why."""
    counts = {
        "silent": calls.silent,
        "recorded": calls.recorded,
        "conflicting": tree.conflicts,
        "left_out": parts.left_out,
    }
    for outcome, number in counts.items():
        metrics.SPANS.labels(outcome).inc(number)
    if any(counts.values()):
        services = sorted({service for service, _ in tree.spans})[:5]
        log.warning("spans left out", role=key[0], trace=key[1], services=services, switch=SWITCH, **counts)


def _count_unassembled(key: TraceKey, error: Exception) -> None:
    metrics.TRACES.labels("failed").inc()
    report = log.warning if isinstance(error, ChatError | ContractError) else log.error
    report("trace cannot be assembled", role=key[0], trace=key[1], reason=str(error)[:500])
