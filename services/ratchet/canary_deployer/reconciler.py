"""Makes the decisions about one role's rollout true, safe against a crash anywhere.

A decision becomes true in five steps, and each may be repeated:

1. the new record, with the messages to publish in its outbox, by compare-and-set in `rollouts`: from here on it holds;
2. the route in `policies` (for a rollback this one write ends the canary's traffic);
3. the stages of both policies in `policies`;
4. the messages of the outbox, whose ids follow from the decision, so that a second copy is a known duplicate;
5. the record with an empty outbox.

A record with a full outbox goes through 2 to 5 before anything else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.message import Cause
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import Announcer, registration_cause
from ratchet.canary_deployer.domain.rollout import Decision, Rollout, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.serving import expected_route, staged_policy
from ratchet.canary_deployer.domain.summary import e_values
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.leadership import Lead
from ratchet.canary_deployer.rollout_store import RolloutStore
from ratchet.core.contract import MESSAGES, Message
from ratchet.core.contract.state import PolicyStage, PolicyVersion, ServedPolicy
from ratchet.core.errors import Conflict, NotFound, Unavailable, Unreadable

log = structlog.get_logger()

NEEDS_ENTRY = frozenset({Verdict.START, Verdict.ADVANCE, Verdict.PROMOTE})
"""Verdicts that move traffic to the candidate. Every other one ends it or keeps it where it is."""


class Publish(Protocol):
    """Stores messages that follow from one event; returns when all are stored."""

    async def __call__(self, messages: Sequence[Message], *, cause: Cause | None = None) -> None: ...


@dataclass(kw_only=True)
class RolloutReconciler:
    """Applies decisions. Its caller holds the store's lock."""

    store: RolloutStore
    policies: KvPolicies
    publish: Publish
    lead: Lead
    rules: Rules
    announcer: Announcer
    now: Callable[[], datetime]

    async def load_reconciled(self) -> Rollout | None:
        """The newest rollout, once everything that follows from its last decision is true."""
        rollout = await self.store.load()
        return await self.reconcile(rollout) if rollout is not None and rollout.outbox else rollout

    async def apply_decision(self, rollout: Rollout, decision: Decision) -> Rollout:
        """Take a decision and make it true. Raises what `preview_decision` raises."""
        moved = await self.preview_decision(self.store.aged(rollout), decision)
        await self.store.save(moved)
        # The audit has the words of its reason.
        log.info("decided", role=rollout.role, policy=moved.candidate.name, verdict=str(decision.verdict))
        return await self.reconcile(moved)

    async def preview_decision(self, rollout: Rollout, decision: Decision) -> Rollout:
        """The rollout as `decision` leaves it; nothing is written.

        Raises `IllegalMove`, and `NotFound` or `Unreadable` where a policy without a readable entry would get traffic.
        """
        if decision.verdict in NEEDS_ENTRY:
            policy = await self.policies.version(rollout.role, rollout.candidate.version)
        else:
            policy = await self.policies.version_or_stub(rollout.role, rollout.candidate, rollout.created_at)
        ended: list[ServedPolicy] = []
        if decision.verdict is Verdict.REVERT:
            canary = rollout.ended.candidate if rollout.ended and rollout.ended.had_traffic else None
            ended = [one for one in (rollout.stable, canary) if one is not None]
        taken_back = [await self.policies.version_or_stub(rollout.role, one, rollout.created_at) for one in ended]
        entries = [policy, *taken_back]
        return decisions.apply_decision(rollout, decision, self.rules, self.announcer, entries, self.now())

    async def reconcile(self, rollout: Rollout) -> Rollout:
        """Steps 2 to 5; harmless when some of them were done before."""
        ended = rollout.ended.candidate if rollout.ended else None
        try:
            await self.policies.change_route(rollout.role, lambda route: expected_route(route, rollout))  # step 2
            for policy in filter(None, (rollout.candidate, rollout.stable, ended)):  # step 3
                try:
                    await self.policies.change_version(
                        rollout.role, policy.version, lambda known: staged_policy(known, rollout)
                    )
                except (NotFound, Unreadable) as error:
                    log.error("stage not written", role=rollout.role, policy=policy.name, reason=str(error))
            await self.lead.confirm()
            for cause, pending in itertools.groupby(rollout.outbox, key=lambda event: event.cause):  # step 4
                messages: list[Message] = [msgspec.json.decode(one.body, type=MESSAGES[one.topic]) for one in pending]
                await self.publish(messages, cause=cause)
                metrics.count_deployments(messages)
        except (Unavailable, Conflict):
            self.store.forget()
            raise
        metrics.show_rollout(rollout, e_values(rollout.statistics, self.rules))
        announced = msgspec.structs.replace(rollout, outbox=())
        await self.store.save(announced)  # step 5
        return announced

    async def supersede_candidate(self, older: PolicyVersion, newer: PolicyVersion) -> None:
        """End a candidate that never began in favour of a newer one. Published first: the stage records that it is."""
        await self.lead.confirm()
        reason = f"superseded by {newer.name} before it met traffic"
        message = self.announcer.superseded(older, reason, self.now())
        await self.publish([message], cause=registration_cause(older))
        await self.policies.change_version(
            older.role,
            older.version,
            lambda policy: msgspec.structs.replace(policy, stage=PolicyStage.SUPERSEDED, reason=reason),
        )
        log.info("superseded", role=older.role, policy=older.name, by=newer.name)
