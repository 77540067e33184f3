"""Controls the rollouts of one role, one at a time: gates, then traffic, then a verdict, then the next candidate.

`step` does the one thing that is due; `run` repeats it. Operators' acts (`operator_acts.py`) and the steps take turns:
each holds the store's lock while it reads the record and writes what follows from it.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import structlog

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Decision, Rollout, State, Verdict
from ratchet.canary_deployer.gates.base import GateGoesOn, Remembers
from ratchet.canary_deployer.observer import Observer
from ratchet.canary_deployer.operator_acts import OperatorActs
from ratchet.canary_deployer.preparation import Preparation
from ratchet.canary_deployer.reconciler import RolloutReconciler
from ratchet.canary_deployer.replica_watch import ReplicaWatch
from ratchet.canary_deployer.replicas import Inconclusive
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.canary_deployer.rollout_store import RolloutStore
from ratchet.core.contract.state import PolicyStage, PolicyVersion
from ratchet.core.errors import Conflict, RatchetError, Unavailable

log = structlog.get_logger()

LOOK_AGAIN_S = 30.0
"""With nothing to do, look for candidates this often without a call."""
AFTER_FAULT_S = 1.0
"""Pause before the state is read again after a fault of another process."""
LONGEST_PAUSE_S = 30.0
"""A fault of our own will come again, at the cost of a gate perhaps: each pause is twice the last one, up to this."""


class RolloutController:
    """Runs for one term of leadership."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self.woken = asyncio.Event()
        """Set when there may be something to do: a new policy, an operator's act."""
        self.store = RolloutStore(context)
        self.reconciler = RolloutReconciler(context, self.store)
        self.preparation = Preparation(context)
        self.observer = Observer(context, self.store, self.reconciler)
        self.watch = ReplicaWatch(context)
        self.operators = OperatorActs(context, self.store, self.reconciler, self.preparation, self.woken)
        self._stopping = False
        self._looked_at = -math.inf
        self.fault: str | None = None
        """Why the last step failed; None when it did not."""
        self.progress: str | None = None
        """How far a gate that takes hours has come."""

    async def run(self) -> None:
        """Step until stopped. After a fault everything is read again."""
        pause_s = AFTER_FAULT_S
        while not self._stopping:
            try:
                await self.step()
                self.fault, self.progress, pause_s = None, None, AFTER_FAULT_S
            except GateGoesOn as part:
                self.fault, self.progress, pause_s = None, str(part), AFTER_FAULT_S
                await self._pause(part.again_in_s)
            except Inconclusive as error:
                await self._recover(str(error), error.again_in_s, error.for_log)
            except Unavailable as error:
                await self._recover(str(error), AFTER_FAULT_S, error.for_log)
            except Conflict as error:
                await self._recover(str(error), AFTER_FAULT_S)
            except Exception as error:  # the boundary: one role's fault must not stop the others
                known = isinstance(error, RatchetError)
                if not known:
                    log.exception("rollout step failed", role=self.context.role)
                await self._recover(str(error) if known else repr(error), pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._leave_gates()
        rollout = self.store.rollout
        if rollout is not None and rollout.state in WITH_TRAFFIC and not rollout.outbox:
            with suppress(RatchetError):  # unsaved statistics are folded again after the restart
                await self.store.save(rollout)
        await self.watch.close()
        await self.observer.close()

    async def stop(self) -> None:
        """Return from `run` soon; a gate that runs is cancelled, and runs again after a restart."""
        self._stopping = True
        await self.preparation.cancel_gate()
        self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        self.woken.set()

    async def current(self) -> Rollout | None:
        """The newest rollout of the role, with its statistics as of now."""
        async with self.store.lock:
            return await self.store.load()

    async def step(self) -> None:
        """Do the one thing that is due now."""
        async with self.store.lock:
            rollout = await self.store.load()
            if rollout is not None and rollout.outbox:
                await self.reconciler.reconcile(rollout)
                return
        if rollout is None or rollout.state is not State.GATING:
            self._leave_gates()
        if rollout is None or not rollout.active:
            await self._begin_next()
        elif await self._supersede(rollout):
            return
        elif self.store.lost is not None and rollout.state not in WITH_TRAFFIC:
            await self._abort(rollout, self.store.lost)
        elif rollout.state is State.GATING:
            await self._pass_gates(rollout)
        elif rollout.state in WITH_TRAFFIC:
            await self._observe(rollout)
        else:
            await self._pause(LOOK_AGAIN_S)

    async def _begin_next(self) -> None:
        """Open a rollout of the newest registered candidate, or wait to be woken. Older ones are superseded."""
        await self.watch.close()
        await self.observer.close()
        candidates = await self._candidates()
        if not candidates:
            await self._pause(LOOK_AGAIN_S)
            return
        async with self.store.lock:
            before = await self.store.load()
            if before is not None and (before.active or before.parked):
                return
            *older, newest = candidates
            for candidate in older:
                await self.reconciler.supersede_candidate(candidate, newest)
            decision = Decision(Verdict.START, "registered", ITSELF)
            await self.store.save(await self.preparation.open_rollout(newest, before, decision))
            log.info("rollout opened", role=self.context.role, policy=newest.name, actor=ITSELF)

    async def _supersede(self, rollout: Rollout) -> bool:
        """End a rollout whose place a newer candidate may take. Looks for one when woken, and now and then."""
        now = self.context.monotonic()
        due = self.woken.is_set() or now - self._looked_at >= LOOK_AGAIN_S
        if not due or not decisions.may_be_superseded(rollout, self.context.rules):
            return False
        self.woken.clear()
        self._looked_at = now
        newer = [candidate for candidate in await self._candidates() if candidate.version > rollout.candidate.version]
        if not newer:
            return False
        async with self.store.lock:
            current = await self.store.load_same(rollout, {rollout.state})
            if current is not None:
                reason = f"superseded by {newer[-1].name} {decisions.WHY_SUPERSEDED[current.state]}"
                await self.reconciler.apply_decision(current, Decision(Verdict.SUPERSEDE, reason, ITSELF))
        return True

    async def _pass_gates(self, rollout: Rollout) -> None:
        """Run the next gate without holding the lock; conclude when all have run or one has failed."""
        gate = await self.preparation.next_gate(rollout)
        result = await self.preparation.run_gate(gate, rollout) if gate is not None else None
        async with self.store.lock:
            current = await self.store.load_same(rollout, {State.GATING})
            if current is None:
                return
            if result is not None:
                current = decisions.with_gate_result(current, result)
                await self.store.save(current)
                metrics.show_gates(current)
                metrics.GATES.labels(current.role, result.gate, result.outcome).inc()
            if gate is None:
                await self.reconciler.apply_decision(*await self.preparation.conclude_gates(current))

    def _leave_gates(self) -> None:
        """No gate keeps anything of this role."""
        for gate in self.context.gates.values():
            if isinstance(gate, Remembers):
                gate.forget(self.context.role)

    async def _abort(self, rollout: Rollout, reason: str) -> None:
        async with self.store.lock:
            if (current := await self.store.load_same(rollout, {rollout.state})) is not None:
                await self.reconciler.apply_decision(current, Decision(Verdict.ABORT, reason, ITSELF))

    async def _observe(self, rollout: Rollout) -> None:
        decision = await self.watch.look(rollout)
        if decision is None:
            await self.observer.observe(rollout)
            return
        async with self.store.lock:
            if (current := await self.store.load_same(rollout, WITH_TRAFFIC)) is not None:
                await self.reconciler.apply_decision(current, decision)

    async def _candidates(self) -> list[PolicyVersion]:
        """Registered policies that have not begun, oldest first; none while the queue is parked."""
        if self.store.rollout is not None and self.store.rollout.parked:
            return []
        return [
            version
            for version in await self.context.policies.versions(self.context.role)
            if version.stage == PolicyStage.REGISTERED
        ]

    async def _recover(self, reason: str, pause_s: float, for_log: str | None = None) -> None:
        """Note the fault, and pause before the record is read again; `for_log`: what a log may hold of the reason."""
        log.warning("rollout waits", role=self.context.role, reason=for_log or reason, again_in_s=pause_s)
        self.fault, self._looked_at = reason, -math.inf
        self.store.forget()
        await self._pause(pause_s)

    async def _pause(self, longest_s: float) -> None:
        if not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self.woken.wait()
                    self._looked_at = -math.inf  # a candidate may be new, whatever the state of the rollout
        self.woken.clear()
