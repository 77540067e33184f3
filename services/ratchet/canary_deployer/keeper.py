"""Keeps one role's rollout: the record, and everything that follows from a decision, safe against a crash anywhere.

A decision becomes true in five steps, and each may be repeated:

1. the new record, with the messages to publish in its outbox, by compare-and-set in `rollouts`: from here on it holds;
2. the route in `policies` (for a rollback this one write ends the canary's traffic);
3. the stages of both policies in `policies`;
4. the messages of the outbox, whose ids follow from the decision, so that a second copy is a known duplicate;
5. the record with an empty outbox.

A record that is found with a full outbox goes through 2 to 5 before anything else. Statistics are saved together with
their place in both streams, so what was folded after the last save is simply folded again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec
import structlog

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import Facts
from ratchet.canary_deployer.domain.rollout import WITH_TRAFFIC, Rollout
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.serving import renewed, restaged, settled
from ratchet.canary_deployer.domain.statistics import e_values
from ratchet.canary_deployer.domain.verdicts import Decision
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.kernel.errors import Conflict, Unavailable
from ratchet.kernel.kv import Bucket
from ratchet.messages import MESSAGES, Message, ModelDeployed
from ratchet.messages.base import Cause

log = structlog.get_logger()

SAVE_S = 1.0
"""Statistics are saved at most this often between decisions."""


class Publish(Protocol):
    """Stores messages that follow from one event; returns when all are stored."""

    async def __call__(self, messages: Sequence[Message], *, cause: Cause | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Office:
    """Where records, routes and messages go, and what announcements say."""

    policies: KvPolicies
    rollouts: Bucket[Rollout]
    publish: Publish
    now: Callable[[], datetime]
    rules: Rules
    endpoint: str
    serving_platform: str
    lease_s: float


class RolloutKeeper:
    """The newest rollout of one role. Its caller takes care that one thing happens at a time."""

    def __init__(self, role: str, office: Office) -> None:
        self._role = role
        self._office = office
        self._rollout: Rollout | None = None
        self._revision: int | None = None
        self._loaded = False
        self._unsaved = False
        self._saved_at: datetime | None = None
        self._leased_at: datetime | None = None
        self.generation = 0
        """Grows whenever the record is read again: what was folded since the last save is gone."""

    @property
    def rollout(self) -> Rollout | None:
        """The rollout as it is in memory."""
        return self._rollout

    async def load(self) -> Rollout | None:
        """The rollout; read from the bucket at first and after a fault."""
        if not self._loaded:
            entry = await self._office.rollouts.get(self._role)
            self._rollout, self._revision = (entry.value, entry.revision) if entry else (None, None)
            self._loaded, self._unsaved, self._leased_at = True, False, None
            self.generation += 1
        return self._rollout

    def forget(self) -> None:
        """Read the record again before the next step: after a fault nobody knows which writes arrived."""
        self._loaded = False

    async def open(self, rollout: Rollout) -> None:
        """Begin a new rollout in place of the one that has ended."""
        await self._save(rollout)
        log.info("rollout opened", role=self._role, policy=rollout.candidate.name, actor=rollout.actor)

    async def note(self, rollout: Rollout) -> None:
        """Save the record between decisions."""
        await self._save(rollout)

    async def observe(self, rollout: Rollout) -> None:
        """Take over new statistics; they are saved when the last save is a while ago."""
        before = self._rollout
        if before is not None and rollout != before:
            self._rollout, self._unsaved = rollout, True
            metrics.count_errors(rollout, before)
            metrics.show_rollout(rollout, e_values(rollout.watch.statistics, self._office.rules))
        due = self._saved_at is None or self._office.now() - self._saved_at >= timedelta(seconds=SAVE_S)
        if self._unsaved and due:
            await self._save(rollout)

    async def take(self, rollout: Rollout, decision: Decision) -> Rollout:
        """Take a decision and make it true. Raises `IllegalMove` when it is not possible."""
        moved = await self.foreseen(rollout, decision)
        await self._save(moved)
        verdict, policy = str(decision.verdict), moved.candidate.name
        log.info("decided", role=self._role, policy=policy, verdict=verdict, reason=decision.reason)
        return await self.make_true(moved)

    async def foreseen(self, rollout: Rollout, decision: Decision) -> Rollout:
        """The rollout as `decision` leaves it; nothing is written. Raises `IllegalMove`."""
        policy = await self._office.policies.version(self._role, rollout.candidate.version)
        facts = Facts(policy, self._office.endpoint, self._office.serving_platform)
        return decisions.taken(rollout, decision, self._office.rules, facts, self._office.now())

    async def make_true(self, rollout: Rollout) -> Rollout:
        """Steps 2 to 5; harmless when some of them were done before."""
        try:
            await self._office.policies.change_route(self._role, lambda route: settled(route, rollout))
            await self._restage(rollout)
            await self._announce(rollout)
        except (Unavailable, Conflict):
            self.forget()
            raise
        metrics.show_rollout(rollout, e_values(rollout.watch.statistics, self._office.rules))
        announced = msgspec.structs.replace(rollout, outbox=())
        await self._save(announced)
        return announced

    async def renew(self, rollout: Rollout) -> None:
        """Let the canary's lease grow when it is time."""
        now = self._office.now()
        fresh = self._leased_at is not None and now - self._leased_at < timedelta(seconds=self._office.lease_s)
        if fresh or rollout.state not in WITH_TRAFFIC:
            return
        route = await self._office.policies.change_route(self._role, lambda route: renewed(route, rollout))
        self._leased_at = now
        if route.canary is not None:
            metrics.LEASE.labels(self._role).set(route.canary.lease)

    async def _restage(self, rollout: Rollout) -> None:
        for policy in (rollout.candidate, rollout.stable):
            if policy is not None:
                await self._office.policies.change_version(
                    self._role, policy.version, lambda known: restaged(known, rollout)
                )

    async def _announce(self, rollout: Rollout) -> None:
        for cause, events in itertools.groupby(rollout.outbox, key=lambda event: event.cause):
            messages: list[Message] = [msgspec.json.decode(one.body, type=MESSAGES[one.topic]) for one in events]
            await self._office.publish(messages, cause=cause)
            for message in messages:
                if isinstance(message, ModelDeployed) and message.state is not None:
                    metrics.DEPLOYMENTS.labels(message.state).inc()

    async def _save(self, rollout: Rollout) -> None:
        """Write the record by compare-and-set. A lost one means that somebody else drives this role too."""
        try:
            if self._revision is None:
                self._revision = await self._office.rollouts.create(self._role, rollout)
            else:
                self._revision = await self._office.rollouts.update(self._role, rollout, self._revision)
        except (Unavailable, Conflict):
            self.forget()
            raise
        self._rollout, self._unsaved = rollout, False
        self._saved_at = self._office.now()
