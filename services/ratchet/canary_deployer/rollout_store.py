"""Keeps one role's rollout: the record, and everything that follows from a decision, safe against a crash anywhere.

A decision becomes true in five steps, and each may be repeated:

1. the new record, with the messages to publish in its outbox, by compare-and-set in `rollouts`: from here on it holds;
2. the route in `policies` (for a rollback this one write ends the canary's traffic);
3. the stages of both policies in `policies`;
4. the messages of the outbox, whose ids follow from the decision, so that a second copy is a known duplicate;
5. the record with an empty outbox.

A record that is found with a full outbox goes through 2 to 5 before anything else. Statistics are saved together with
their places in the streams, so what was folded after the last save is simply folded again. Trajectories are too many
for the record: `chunk_store.py` keeps them beside it, and each record names the chunks that belong to it.

Only the leader writes (`leadership.py`). It writes a record that another term has left with its own term first.

How long a stage, a soak or a deadline has lasted is counted in ticks of the monotonic clock and saved with every lease:
no clock that is set back or forward shortens or lengthens it. Time in which nobody watched does not count.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import Cause
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.chunk_store import ChunksLost, ChunkStore
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import Announcer, registration_cause
from ratchet.canary_deployer.domain.rollout import (
    TERMINAL,
    WITH_TRAFFIC,
    Decision,
    Rollout,
    Verdict,
    without_statistics,
)
from ratchet.canary_deployer.domain.rollout_statistics import LiveStatistics
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.serving import expected_route, renewed_route, staged_policy
from ratchet.canary_deployer.domain.summary import e_values
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.leadership import Lead
from ratchet.canary_deployer.nats_events import Read
from ratchet.contract import MESSAGES, Message, ModelDeployed
from ratchet.contract.state import PolicyStage, PolicyVersion
from ratchet.errors import BusUnavailable, Conflict, NotFound, Unavailable, Unreadable

log = structlog.get_logger()

SAVE_S = 1.0
"""Statistics are saved at most this often between decisions, and less often ..."""
SAVE_CHUNK_S = 0.02
"""... by this much for each chunk that is open, ..."""
LONGEST_SAVE_S = 5.0
"""... but at least this often: what was folded since is folded again after a crash."""
NEEDS_ENTRY = frozenset({Verdict.START, Verdict.ADVANCE, Verdict.PROMOTE})
"""Verdicts that move traffic to the candidate. Every other one ends it or keeps it where it is."""
LONGEST_TICK_S = 15.0
"""A longer pause between two looks was no watching: this much of it counts. Gateways drop the canary after 20 s."""


class Publish(Protocol):
    """Stores messages that follow from one event; returns when all are stored."""

    async def __call__(self, messages: Sequence[Message], *, cause: Cause | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Office:
    """Where records, routes and messages go, and what announcements say."""

    policies: KvPolicies
    rollouts: Bucket[Rollout]
    chunks: Bucket[Chunk]
    publish: Publish
    now: Callable[[], datetime]
    rules: Rules
    announcer: Announcer
    lease_s: float
    lead: Lead
    monotonic: Callable[[], float] = time.monotonic
    longest_tick_s: float = LONGEST_TICK_S


class RolloutKeeper:
    """The newest rollout of one role. Its caller takes care that one thing happens at a time."""

    def __init__(self, role: str, office: Office) -> None:
        self._role = role
        self._office = office
        self._rollout: Rollout | None = None
        self._revision: int | None = None
        self._loaded = False
        self._unsaved = False
        self._saved_at: float | None = None
        self._leased_at: float | None = None
        self._ticked_at: float | None = None
        self._chunks = ChunkStore(role, office.chunks)
        self._watching: tuple[str, LiveStatistics] | None = None
        self.lost: str | None = None
        """Why the trajectories of a rollout with traffic are gone; None when they are not."""
        self.generation = 0
        """Grows whenever the record is read again: what was folded since the last save is gone."""

    @property
    def rollout(self) -> Rollout | None:
        """The rollout as it is in memory."""
        return self._rollout

    async def load(self) -> Rollout | None:
        """The rollout; read from the bucket at first and after a fault."""
        if not self._loaded:
            entry, self.lost = await self._stored()
            self._rollout, self._revision = (entry.value, entry.revision) if entry else (None, None)
            self._unsaved, self._leased_at, self._watching = False, None, None
            self.generation += 1
            if self.lost is None:
                await self._claim()
                self._watching, self.lost = await self._watched(self._rollout)
            self._loaded = True
        return self._rollout

    async def _stored(self) -> tuple[Entry[Rollout] | None, str | None]:
        """The record; and, where its statistics cannot be read and traffic depends on them, why they are lost.

        A rollout without traffic needs none: what it decided and what it waits for stands beside them.
        """
        try:
            return await self._office.rollouts.get(self._role), None
        except Unreadable as error:
            rest = without_statistics(error.stored)
            if rest is None:
                raise
            log.error("statistics of a rollout left out", role=self._role, reason=str(error))
            lost = f"statistics of the rollout cannot be read: {error.reason}" if rest.state in WITH_TRAFFIC else None
            return Entry(rest, error.revision), lost

    async def _claim(self) -> None:
        """Write this leader's term into what another has left: a write that it still has on its way fails."""
        term, left = self._office.lead.term, self._rollout
        if left is not None and left.term != term:
            await self._save(msgspec.structs.replace(left, term=term))
            self._ticked_at = None

    def forget(self) -> None:
        """Read the record again before the next step: after a fault nobody knows which writes arrived."""
        self._loaded = False

    async def open(self, rollout: Rollout) -> None:
        """Begin a new rollout in place of the one that has ended."""
        await self._save(rollout)
        log.info("rollout opened", role=self._role, policy=rollout.candidate.name, actor=rollout.actor)

    async def supersede(self, older: PolicyVersion, newer: PolicyVersion) -> None:
        """A candidate that never began makes room for a newer one. Announced first: the stage says that it is done."""
        await self._office.lead.confirm()
        office, reason = self._office, f"superseded by {newer.name} before it met traffic"
        message = office.announcer.superseded(older, reason, office.now())
        await office.publish([message], cause=registration_cause(older))
        await office.policies.change_version(
            self._role,
            older.version,
            lambda policy: msgspec.structs.replace(policy, stage=PolicyStage.SUPERSEDED, reason=reason),
        )
        log.info("superseded", role=self._role, policy=older.name, by=newer.name)

    async def note(self, rollout: Rollout) -> None:
        """Save the record between decisions."""
        await self._save(rollout)

    def aged(self, rollout: Rollout) -> Rollout:
        """The rollout after the time that has passed since it was last looked at, if it had traffic."""
        now, before = self._office.monotonic(), self._ticked_at
        self._ticked_at = now
        if before is None or rollout.state not in WITH_TRAFFIC:
            return rollout
        passed_s = min(now - before, self._office.longest_tick_s)
        return msgspec.structs.replace(
            rollout, stage_age_s=rollout.stage_age_s + passed_s, age_s=rollout.age_s + passed_s
        )

    def folded(self, rollout: Rollout, read: Read) -> Rollout:
        """The rollout with what was read. The trajectories change in place; they are saved with the record."""
        if self._watching is None or self._watching[0] != rollout.rollout_id:
            self._watching = (rollout.rollout_id, LiveStatistics(rollout.statistics, [], self._office.rules))
            self._chunks.begin()
        watching = self._watching[1]
        watching.fold(read.batch, rollout.compared, rollout.under(self._office.rules))
        watch = watching.record(rollout.weight, rollout.statistics.chunks)
        return msgspec.structs.replace(rollout, statistics=watch, **msgspec.structs.asdict(read.places))

    async def observe(self, rollout: Rollout) -> None:
        """Take over new statistics; they are saved when the last save is a while ago, time alone with every lease."""
        before = self._rollout
        if before is not None and rollout != before:
            folded = (rollout.statistics, rollout.turn_seq, rollout.reward_seq) != (
                before.statistics,
                before.turn_seq,
                before.reward_seq,
            )
            self._rollout, self._unsaved = rollout, self._unsaved or folded
            metrics.count_errors(rollout, before)
            metrics.show_rollout(rollout, e_values(rollout.statistics, self._office.rules))
        since_s = self._office.monotonic() - self._saved_at if self._saved_at is not None else math.inf
        pause_s = min(LONGEST_SAVE_S, SAVE_S + SAVE_CHUNK_S * len(rollout.statistics.chunks))
        if since_s >= (pause_s if self._unsaved else self._office.lease_s):
            await self._save(rollout)

    async def take(self, rollout: Rollout, decision: Decision) -> Rollout:
        """Take a decision and make it true. Raises `IllegalMove` when it is not possible."""
        moved = await self.foreseen(rollout, decision)
        await self._save(moved)
        if rollout.state not in WITH_TRAFFIC:
            self._ticked_at = self._office.monotonic()
        verdict, policy = str(decision.verdict), moved.candidate.name
        log.info("decided", role=self._role, policy=policy, verdict=verdict)  # the audit has the words of its reason
        return await self.make_true(moved)

    async def foreseen(self, rollout: Rollout, decision: Decision) -> Rollout:
        """The rollout as `decision` leaves it; nothing is written.

        Raises `IllegalMove`, and `NotFound` or `Unreadable` where a policy would get on that nobody can read.
        """
        policies = self._office.policies
        if decision.verdict in NEEDS_ENTRY:
            policy = await policies.version(self._role, rollout.candidate.version)
        else:
            policy = await policies.served(self._role, rollout.candidate, rollout.created_at)
        taken_back = await self._taken_back(rollout) if decision.verdict is Verdict.REVERT else ()
        office, entries = self._office, (policy, *taken_back)
        return decisions.apply_decision(rollout, decision, office.rules, office.announcer, entries, office.now())

    async def _taken_back(self, rollout: Rollout) -> tuple[PolicyVersion, ...]:
        """The policies that a revert ends: the promoted one, and a canary that had traffic."""
        canary = rollout.ended.candidate if rollout.ended and rollout.ended.had_traffic else None
        taken = [policy for policy in (rollout.stable, canary) if policy is not None]
        served = self._office.policies.served
        return tuple([await served(self._role, policy, rollout.created_at) for policy in taken])

    async def make_true(self, rollout: Rollout) -> Rollout:
        """Steps 2 to 5; harmless when some of them were done before."""
        try:
            await self._office.policies.change_route(self._role, lambda route: expected_route(route, rollout))
            await self._restage(rollout)
            await self._announce(rollout)
        except (Unavailable, Conflict):
            self.forget()
            raise
        metrics.show_rollout(rollout, e_values(rollout.statistics, self._office.rules))
        announced = msgspec.structs.replace(rollout, outbox=())
        await self._save(announced)
        return announced

    async def renew(self, rollout: Rollout) -> None:
        """Let the canary's lease grow when it is time."""
        now = self._office.monotonic()
        fresh = self._leased_at is not None and now - self._leased_at < self._office.lease_s
        if fresh or rollout.state not in WITH_TRAFFIC:
            return
        route = await self._office.policies.change_route(self._role, lambda route: renewed_route(route, rollout))
        self._leased_at = now
        if route.canary is not None:
            metrics.LEASE.labels(self._role).set(route.canary.lease)

    async def _restage(self, rollout: Rollout) -> None:
        ended = rollout.ended.candidate if rollout.ended else None
        for policy in (rollout.candidate, rollout.stable, ended):
            if policy is None:
                continue
            try:
                await self._office.policies.change_version(
                    self._role, policy.version, lambda known: staged_policy(known, rollout)
                )
            except (NotFound, Unreadable) as error:
                log.error("stage not written", role=self._role, policy=policy.name, reason=str(error))

    async def _announce(self, rollout: Rollout) -> None:
        await self._office.lead.confirm()
        for cause, events in itertools.groupby(rollout.outbox, key=lambda event: event.cause):
            messages: list[Message] = [msgspec.json.decode(one.body, type=MESSAGES[one.topic]) for one in events]
            await self._office.publish(messages, cause=cause)
            for message in messages:
                if isinstance(message, ModelDeployed) and message.state is not None:
                    metrics.DEPLOYMENTS.labels(message.state).inc()

    async def _watched(self, rollout: Rollout | None) -> tuple[tuple[str, LiveStatistics] | None, str | None]:
        """The trajectories of a record that was just read, or why they are gone.

        Chunks are deleted only once a newer record names others: with the same record they are gone for good, and an
        operator's act must not wait for them.
        """
        if rollout is None or rollout.state not in WITH_TRAFFIC:
            return None, None
        try:
            chunks = await self._chunks.load(rollout.statistics.chunks)
        except ChunksLost as error:
            now = await self._office.rollouts.get(self._role)
            if now is None or now.revision != self._revision:
                raise BusUnavailable("the record has changed meanwhile: reading it again") from error
            return None, str(error)
        return (rollout.rollout_id, LiveStatistics(rollout.statistics, chunks, self._office.rules)), None

    async def _save(self, rollout: Rollout) -> None:
        """Write chunks that have changed, then the record by compare-and-set; only then older chunks may go.

        A lost compare-and-set means that another deployer leads now.
        """
        try:
            await self._office.lead.confirm()
            rollout = await self._with_chunks(rollout)
            if self._revision is None:
                self._revision = await self._office.rollouts.create(self._role, rollout)
            else:
                self._revision = await self._office.rollouts.update(self._role, rollout, self._revision)
        except (Unavailable, Conflict):
            self.forget()
            raise
        self._rollout, self._unsaved = rollout, False
        self._saved_at = self._office.monotonic()
        await self._chunks.drop_all_but(rollout.statistics.chunks)

    async def _with_chunks(self, rollout: Rollout) -> Rollout:
        """The record with the names of its chunks; a rollout that has ended keeps none."""
        names = rollout.statistics.chunks
        if rollout.state in TERMINAL:
            names = ()
        elif self._watching is not None and self._watching[0] == rollout.rollout_id:
            window = self._watching[1].window
            names = await self._chunks.save(window.chunks, window.changed)
            window.changed.clear()
        return msgspec.structs.replace(rollout, statistics=msgspec.structs.replace(rollout.statistics, chunks=names))
