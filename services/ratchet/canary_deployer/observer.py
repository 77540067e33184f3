"""Observes a canary with traffic: keeps its lease, reads what happens to trajectories, and decides on the evidence.

Outcomes come through two other services. While these are behind by more than a trajectory waits for its outcome,
nothing of what the canary does can be judged: its lease ends, as when the streams cannot be read, and grows again when
outcomes come within the horizon.
"""

from __future__ import annotations

import msgspec
import structlog

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Decision, Rollout, Verdict
from ratchet.canary_deployer.domain.serving import renewed_route
from ratchet.canary_deployer.domain.summary import traced
from ratchet.canary_deployer.domain.verdicts import decide
from ratchet.canary_deployer.nats_events import Behind, Events, EvidenceLost, Places
from ratchet.canary_deployer.reconciler import RolloutReconciler
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.canary_deployer.rollout_store import RolloutStore

log = structlog.get_logger()

BLIND_S = 15.0
"""A lease grows for this long after its evidence was last read, judged and saved, and no longer until it is again."""
LATE_S = 10.0
"""Operators see that outcomes are late by more than this: less is the way that a message goes."""


class Observer:
    """Observes the rollout of one role."""

    def __init__(self, context: RoleContext, store: RolloutStore, reconciler: RolloutReconciler) -> None:
        self.context = context
        self.store = store
        self.reconciler = reconciler
        self._events: Events | None = None
        self._reading: tuple[str, int] | None = None
        """The rollout that `_events` are read for, and the generation of its record."""
        self._blind_since: tuple[str, float] | None = None
        """For which rollout and since when its evidence has not been read, judged and saved."""
        self._leased: tuple[int, float] | None = None
        """The record's generation and the instant of the last renewal."""
        self._behind: Behind | None = None
        self._unjudged: str | None = None
        """The rollout whose outcomes come too late to judge it."""

    @property
    def late(self) -> str | None:
        """Why outcomes are late, and what follows; None when they are not."""
        behind = self._behind
        if behind is None or behind.seconds < LATE_S:
            return None
        reason = f"outcomes are {behind.seconds:.0f} s late: {behind.service} is behind"
        return f"{reason}; the canary gets no traffic until they come within the horizon" if self._unjudged else reason

    async def observe(self, rollout: Rollout) -> None:
        """Renew the lease, wait for events, fold them into the statistics, and take the decision that they ask for.

        Where the evidence is lost the rollout is rolled back: nothing can be proven any more.
        """
        await self._renew_lease(rollout)
        try:
            events = await self._open_events(rollout)
        except EvidenceLost as error:
            async with self.store.lock:
                if (current := await self.store.load_same(rollout, WITH_TRAFFIC)) is not None:
                    await self.reconciler.apply_decision(current, Decision(Verdict.ROLL_BACK, str(error), ITSELF))
            return
        read = await events.next(self.context.tick_s)
        async with self.store.lock:
            current = await self.store.load()
            if current is None or self._reading != (current.rollout_id, self.store.generation):
                return
            if current.state in WITH_TRAFFIC:
                observed = traced(
                    self.store.folded(self.store.aged(current), read), self.context.now(), self.context.rules
                )
                decision = decide(observed, self.context.rules)
                if decision is not None:
                    await self.reconciler.apply_decision(observed, decision)
                else:
                    await self.store.keep_statistics(observed)
        self._blind_since = None
        self._note_lateness(rollout, read.behind)

    def _note_lateness(self, rollout: Rollout, behind: Behind | None) -> None:
        """The lease ends when the oldest report has waited for as long as a trajectory waits for its outcome.

        It goes on only when reports come within the horizon again, so that it does not come and go.
        """
        self._behind, rules = behind, rollout.under(self.context.rules)
        metrics.BEHIND.labels(rollout.role).set(behind.seconds if behind else 0.0)
        was = self._unjudged == rollout.rollout_id
        limit_s = rules.horizon_s if was else rules.patience_s
        unjudged = behind is not None and behind.seconds > limit_s
        self._unjudged = rollout.rollout_id if unjudged else None
        if unjudged and not was:
            log.warning("lease not renewed", role=rollout.role, policy=rollout.candidate.name, reason=self.late)
        if was and not unjudged:
            log.info("lease renewed again", role=rollout.role, policy=rollout.candidate.name)

    async def close(self) -> None:
        """Stop reading events."""
        events, self._events, self._reading = self._events, None, None
        self._behind = None
        metrics.BEHIND.labels(self.context.role).set(0.0)
        if events is not None:
            await events.close()

    async def _renew_lease(self, rollout: Rollout) -> None:
        """Let the canary's lease grow when it is time, unless its evidence has been unseen, or late, for too long."""
        now = self.context.monotonic()
        if self._blind_since is None or self._blind_since[0] != rollout.rollout_id:
            self._blind_since = (rollout.rollout_id, now)
        if now - self._blind_since[1] >= BLIND_S or self._unjudged == rollout.rollout_id:
            return
        async with self.store.lock:
            if (current := await self.store.load_same(rollout, WITH_TRAFFIC)) is None:
                return
            generation, now = self.store.generation, self.context.monotonic()
            leased = self._leased
            if leased is not None and leased[0] == generation and now - leased[1] < self.context.lease_s:
                return
            route = await self.context.policies.change_route(current.role, lambda route: renewed_route(route, current))
            self._leased = (generation, now)
        if route.canary is not None:
            metrics.LEASE.labels(current.role).set(route.canary.lease)

    async def _open_events(self, rollout: Rollout) -> Events:
        """Events after those in the record; opened anew for another rollout and after every fault."""
        if self.store.lost is not None:
            raise EvidenceLost(self.store.lost)
        reading = (rollout.rollout_id, self.store.generation)
        if self._events is None or self._reading != reading:
            await self.close()
            places = msgspec.convert(rollout, Places, from_attributes=True)
            self._events, self._reading = await self.context.source.open(rollout.role, places), reading
        return self._events
