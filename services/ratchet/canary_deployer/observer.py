"""Observes a canary with traffic: keeps its lease, reads what happens to trajectories, and decides on the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain.rollout import ITSELF, WITH_TRAFFIC, Decision, Rollout, Verdict
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.serving import renewed_route
from ratchet.canary_deployer.domain.verdicts import decide
from ratchet.canary_deployer.kv_policies import KvPolicies
from ratchet.canary_deployer.nats_events import Events, EventSource, EvidenceLost, Places
from ratchet.canary_deployer.reconciler import RolloutReconciler
from ratchet.canary_deployer.rollout_store import RolloutStore

BLIND_S = 15.0
"""A lease grows for this long after its evidence was last read, judged and saved, and no longer until it is again."""


@dataclass(kw_only=True)
class Observer:
    """Observes the rollout of one role."""

    store: RolloutStore
    reconciler: RolloutReconciler
    policies: KvPolicies
    source: EventSource
    rules: Rules
    lease_s: float
    """The lease is renewed this often."""
    tick_s: float
    """How long one `observe` waits for events."""
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._events: Events | None = None
        self._reading: tuple[str, int] | None = None
        """The rollout that `_events` are read for, and the generation of its record."""
        self._blind_since: tuple[str, float] | None = None
        """For which rollout and since when its evidence has not been read, judged and saved."""
        self._leased: tuple[int, float] | None = None
        """The record's generation and the instant of the last renewal."""

    async def observe(self, rollout: Rollout) -> None:
        """Renew the lease, wait for events, fold them into the statistics, and take the decision that they ask for.

        Where the evidence is lost the rollout is rolled back: nothing can be proven any more.
        """
        await self._renew_lease(rollout)
        try:
            events = await self._open_events(rollout)
        except EvidenceLost as error:
            async with self.store.lock:
                current = await self.store.load()
                if current is not None and current.rollout_id == rollout.rollout_id and current.state in WITH_TRAFFIC:
                    await self.reconciler.apply_decision(current, Decision(Verdict.ROLL_BACK, str(error), ITSELF))
            return
        read = await events.next(self.tick_s)
        async with self.store.lock:
            current = await self.store.load()
            if current is None or self._reading != (current.rollout_id, self.store.generation):
                return
            if current.state in WITH_TRAFFIC:
                observed = self.store.folded(self.store.aged(current), read)
                decision = decide(observed, self.rules)
                if decision is not None:
                    await self.reconciler.apply_decision(observed, decision)
                else:
                    await self.store.keep_statistics(observed)
        self._blind_since = None

    async def close(self) -> None:
        """Stop reading events."""
        events, self._events, self._reading = self._events, None, None
        if events is not None:
            await events.close()

    async def _renew_lease(self, rollout: Rollout) -> None:
        """Let the canary's lease grow when it is time, unless its evidence has been out of sight for too long."""
        now = self.monotonic()
        if self._blind_since is None or self._blind_since[0] != rollout.rollout_id:
            self._blind_since = (rollout.rollout_id, now)
        if now - self._blind_since[1] >= BLIND_S:
            return
        async with self.store.lock:
            current = await self.store.load()  # an operator may have ended it while this waited for the lock
            if current is None or current.rollout_id != rollout.rollout_id or current.state not in WITH_TRAFFIC:
                return
            generation, now = self.store.generation, self.monotonic()
            if self._leased is not None and self._leased[0] == generation and now - self._leased[1] < self.lease_s:
                return
            route = await self.policies.change_route(current.role, lambda route: renewed_route(route, current))
            self._leased = (generation, now)
        if route.canary is not None:
            metrics.LEASE.labels(current.role).set(route.canary.lease)

    async def _open_events(self, rollout: Rollout) -> Events:
        """Events after those in the record; opened anew for another rollout and after every fault.

        Raises `EvidenceLost` when trajectories or places in the streams are lost.
        """
        if self.store.lost is not None:
            raise EvidenceLost(self.store.lost)
        reading = (rollout.rollout_id, self.store.generation)
        if self._events is None or self._reading != reading:
            await self.close()
            places = Places(rollout.start_seq, rollout.turn_seq, rollout.reward_seq, rollout.streams_made)
            self._events, self._reading = await self.source.open(rollout.role, places), reading
        return self._events
