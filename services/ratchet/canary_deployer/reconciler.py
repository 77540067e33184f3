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

import msgspec
import structlog

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.announcements import registration_cause
from ratchet.canary_deployer.domain.rollout import Decision, Rollout, Verdict
from ratchet.canary_deployer.domain.serving import expected_route, staged_policy
from ratchet.canary_deployer.domain.summary import e_values
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.canary_deployer.rollout_store import RolloutStore
from ratchet.core.contract import MESSAGES, Message
from ratchet.core.contract.state import PolicyStage, PolicyVersion, ServedPolicy
from ratchet.core.errors import Conflict, NotFound, Unavailable, Unreadable
from ratchet.core.service.audit import Act, By

log = structlog.get_logger()

NEEDS_ENTRY = frozenset({Verdict.START, Verdict.ADVANCE, Verdict.PROMOTE})
"""Verdicts that move traffic to the candidate. Every other one ends it or keeps it where it is."""


class RolloutReconciler:
    """Applies decisions. Its caller holds the store's lock."""

    def __init__(self, context: RoleContext, store: RolloutStore) -> None:
        self.context = context
        self.store = store

    async def load_reconciled(self) -> Rollout | None:
        """The newest rollout, once everything that follows from its last decision is true."""
        rollout = await self.store.load()
        return await self.reconcile(rollout) if rollout is not None and rollout.outbox else rollout

    async def apply_decision(self, rollout: Rollout, decision: Decision) -> Rollout:
        """Take a decision and make it true. Raises what `preview_decision` raises."""
        moved = await self.preview_decision(self.store.aged(rollout), decision)
        act = Act(str(decision.verdict), By(decision.actor), rollout.role, [rollout.rollout_id, rollout.candidate.name])
        if decision.verdict in NEEDS_ENTRY:
            await self.context.lead.confirm()
            async with self.context.audit.act(act):
                await self.store.save(moved)
        else:  # what takes traffic away waits for no log
            await self.store.save(moved)
            self.context.audit.note(act)
        # The audit has the words of its reason.
        log.info("decided", role=rollout.role, policy=moved.candidate.name, verdict=str(decision.verdict))
        return await self.reconcile(moved)

    async def preview_decision(self, rollout: Rollout, decision: Decision) -> Rollout:
        """The rollout as `decision` leaves it; nothing is written.

        Raises `IllegalMove`, and `NotFound` or `Unreadable` where a policy without a readable entry would get traffic.
        """
        if decision.verdict in NEEDS_ENTRY:
            policy = await self.context.policies.version(rollout.role, rollout.candidate.version)
        else:
            policy = await self.context.policies.version_or_stub(rollout.role, rollout.candidate, rollout.created_at)
        ended: list[ServedPolicy] = []
        if decision.verdict is Verdict.REVERT:
            canary = rollout.ended.candidate if rollout.ended and rollout.ended.had_traffic else None
            ended = [policy for policy in (rollout.stable, canary) if policy is not None]
        taken_back = [
            await self.context.policies.version_or_stub(rollout.role, served, rollout.created_at) for served in ended
        ]
        entries = [policy, *taken_back]
        return decisions.apply_decision(
            rollout, decision, self.context.rules, self.context.announcer, entries, self.context.now()
        )

    async def reconcile(self, rollout: Rollout) -> Rollout:
        """Steps 2 to 5; harmless when some of them were done before."""
        ended = rollout.ended.candidate if rollout.ended else None
        try:
            await self.context.policies.change_route(
                rollout.role, lambda route: expected_route(route, rollout)
            )  # step 2
            for policy in filter(None, (rollout.candidate, rollout.stable, ended)):  # step 3
                try:
                    await self.context.policies.change_version(
                        rollout.role, policy.version, lambda known: staged_policy(known, rollout)
                    )
                except (NotFound, Unreadable) as error:
                    log.error("stage not written", role=rollout.role, policy=policy.name, reason=str(error))
            await self.context.lead.confirm()
            for cause, pending in itertools.groupby(rollout.outbox, key=lambda event: event.cause):  # step 4
                messages: list[Message] = [
                    msgspec.json.decode(event.body, type=MESSAGES[event.topic]) for event in pending
                ]
                await self.context.publish(messages, cause=cause)
                metrics.count_deployments(messages)
        except (Unavailable, Conflict):
            self.store.forget()
            raise
        metrics.show_rollout(rollout, e_values(rollout.statistics, rollout.under(self.context.rules)))
        announced = msgspec.structs.replace(rollout, outbox=())
        await self.store.save(announced)  # step 5
        return announced

    async def supersede_candidate(self, older: PolicyVersion, newer: PolicyVersion) -> None:
        """End a candidate that never began in favour of a newer one. Published first: the stage records that it is."""
        await self.context.lead.confirm()
        reason = f"superseded by {newer.name} before it met traffic"
        message = self.context.announcer.superseded(older, reason, self.context.now())
        await self.context.publish([message], cause=registration_cause(older))
        await self.context.policies.change_version(
            older.role,
            older.version,
            lambda policy: msgspec.structs.replace(policy, stage=PolicyStage.SUPERSEDED, reason=reason),
        )
        log.info("superseded", role=older.role, policy=older.name, by=newer.name)
