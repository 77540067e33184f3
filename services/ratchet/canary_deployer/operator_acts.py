"""What operators order about the rollouts of one role: each act becomes a decision, or a new rollout."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from ratchet.canary_deployer.domain import decisions, operators
from ratchet.canary_deployer.domain.gating import IMMEDIATE
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import Decision, IllegalMove, Rollout, State, Verdict
from ratchet.canary_deployer.domain.verdicts import in_soak
from ratchet.canary_deployer.preparation import Preparation
from ratchet.canary_deployer.reconciler import RolloutReconciler
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.canary_deployer.rollout_store import RolloutStore
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import BadRequest, Conflict, NotFound

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class OperatorActs:
    """Takes the orders of operators, one at a time. A dry run returns the resulting rollout and changes nothing."""

    context: RoleContext
    store: RolloutStore
    reconciler: RolloutReconciler
    preparation: Preparation
    woken: asyncio.Event
    """Set after every order: the controller looks for what follows from it."""

    async def act(self, act: Act, order: Order, *, dry_run: bool = False) -> Rollout:
        """Act on the newest rollout. Raises `NotFound`, `Conflict` or `IllegalMove`, which name what to do instead."""
        try:
            async with self.store.lock:
                before = await (self.store.load() if dry_run else self.reconciler.load_reconciled())
                require_meant(before, order)
                rollout, decision = await self._decision(before, act, order)
                if dry_run:
                    return await self.reconciler.preview_decision(rollout, decision)
                done = await self.reconciler.apply_decision(rollout, decision)
                await self.preparation.cancel_gate()
                return done
        finally:
            self.woken.set()

    async def start(self, policy: PolicyVersion, order: Order, *, dry_run: bool = False) -> Rollout:
        """Start a rollout of `policy`, or approve the one of it that waits. Raises `BadRequest` or `Conflict`."""
        if order.strategy == IMMEDIATE and not order.override:
            raise BadRequest(
                "strategy immediate moves all traffic at once, unwatched: it takes override as well", param="override"
            )
        try:
            async with self.store.lock:
                before = await (self.store.load() if dry_run else self.reconciler.load_reconciled())
                require_meant(before, order)
                if before is None or not before.active:
                    rollout = await self.preparation.open_rollout(policy, before, order.approval(), order)
                    if not dry_run:
                        await self.store.save(rollout)
                        log.info("rollout opened", role=rollout.role, policy=policy.name, actor=order.actor)
                    return rollout
                if before.state is not State.AWAITING_APPROVAL or before.candidate.version != policy.version:
                    raise Conflict(operators.why_no_start(before))
                if order.strategy is not None:
                    before = msgspec.structs.replace(before, asked_strategy=order.strategy)
                rollout, decision = await self.preparation.conclude_gates(before, order.approval())
                take = self.reconciler.preview_decision if dry_run else self.reconciler.apply_decision
                return await take(rollout, decision)
        finally:
            self.woken.set()

    async def _decision(self, rollout: Rollout | None, act: Act, order: Order) -> tuple[Rollout, Decision]:
        if act is Act.REVERT:
            return await self._revert(rollout, order)
        if rollout is None:
            raise NotFound(f"there was no rollout of {self.context.role} yet")
        if act is not Act.APPROVE:
            return rollout, operators.decision_for(rollout, act, order, self.context.rules)
        if rollout.state is not State.AWAITING_APPROVAL:
            raise IllegalMove(rollout.state, act)
        return await self.preparation.conclude_gates(rollout, order.approval())

    async def _revert(self, rollout: Rollout | None, order: Order) -> tuple[Rollout, Decision]:
        """Back to the policy that served before the last promotion, whatever runs; the queue is parked."""
        if rollout is not None and in_soak(rollout, self.context.rules):
            parked = msgspec.structs.replace(rollout, parked=True)
            return parked, Decision(Verdict.ROLL_BACK, order.reason, order.actor)
        role, now = self.context.role, self.context.now()
        route = await self.context.policies.route(role)
        if route is None or route.previous is None or route.stable is None:
            raise Conflict(operators.why_no_revert(role, route))
        decision = Decision(Verdict.REVERT, order.reason, order.actor, "manual_approved")
        previous = await self.context.policies.version_or_stub(role, route.previous, now)
        return decisions.new_revert(previous, route, rollout, decision, now), decision


def require_meant(newest: Rollout | None, order: Order) -> None:
    """Raises `Conflict` where the order is meant for another rollout than the newest one."""
    if order.rollout_id is not None and (newest is None or newest.rollout_id != order.rollout_id):
        now = f"the newest one is of {newest.candidate.name} and {newest.state}" if newest else "there is none"
        raise Conflict(f"this is not the newest rollout any more: {now}. Look at it, then decide")
