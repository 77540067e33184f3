"""Repeats the probe while a candidate has traffic: on replicas that have not played it, and after faults of the engine.

Traffic cannot tell whose fault it is that an engine fails a call, so it is evidence against no policy. The probe can:
it asks the same of every replica under stable's name (`replicas`). Where it refuses the candidate, the rollout is
rolled back; where it shows nothing, the rollout goes on, `fault` says why, and the probe is repeated. So it is where
the candidate is refused while a replica is away that has served it: the others may be at fault. A replica that has been
away for `GONE_S` no longer has a say, for a candidate that no replica serves must end.
"""

from __future__ import annotations

import asyncio

import structlog

from ratchet.bus.tasks import end
from ratchet.canary_deployer.domain.gating import PROBE
from ratchet.canary_deployer.domain.rollout import FAILED, ITSELF, Decision, GateResult, Rollout, Verdict
from ratchet.canary_deployer.replicas import MEND, Inconclusive
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.core.errors import RatchetError, Unavailable

log = structlog.get_logger()

WATCH_S = 15.0
"""Pause between two questions to the replicas whether they are there, and between two probes after faults."""

GONE_S = 600.0
"""A replica that is away for so long will not decide: a restart with its weights takes minutes."""


class ReplicaWatch:
    """Watches the replicas of one role. It probes beside the observer, which renews the lease."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self._watched: str | None = None
        """The rollout."""
        self._probed: set[str] = set()
        """The replicas that have passed the candidate's probe, and have answered ever since."""
        self._served: set[str] = set()
        """The replicas that have passed it once, at the gate or later."""
        self._away_since: dict[str, float] = {}
        """By replica of those: when it was first missing."""
        self._faulted = 0
        """Trajectories of the candidate whose calls an engine had failed when the probe last passed."""
        self._probing: asyncio.Task[Decision | None] | None = None
        self._again_at = 0.0
        self.fault: str | None = None
        """Why the last probe under traffic showed nothing; None when it did, or when there was none."""

    async def look(self, rollout: Rollout) -> Decision | None:
        """The decision that a probe has led to. Begins one where it is due, and waits for none."""
        if self._watched != rollout.rollout_id:
            await self.close()
            at_the_gate = {name for gate in rollout.gates if gate.gate == PROBE for name in _replicas_in(gate)}
            self._watched, self._served = rollout.rollout_id, at_the_gate
            # Without fresh traffic this deployer was started since: replicas may have been replaced unseen.
            is_fresh = rollout.age_s < WATCH_S and not rollout.statistics.canary.started
            self._probed = set(at_the_gate) if is_fresh else set()
        if self._probing is None:
            if self.context.monotonic() >= self._again_at:
                self._probing = asyncio.create_task(self._probe(rollout))
            return None
        if not self._probing.done():
            return None
        probing, self._probing = self._probing, None
        self._again_at = self.context.monotonic() + WATCH_S
        try:
            decision = probing.result()
        except RatchetError as error:  # the engine's fault, or the store's: stable and canary go on
            if self.fault is None:
                words = error.for_log if isinstance(error, Unavailable) else type(error).__name__
                log.warning("probe under traffic shows nothing", role=rollout.role, reason=words)
            self.fault = f"the probe is repeated under traffic: {error}"
            self._again_at += error.again_in_s if isinstance(error, Inconclusive) else 0.0
            return None
        self.fault = None
        return decision

    async def close(self) -> None:
        """End a probe that is under way, and forget the rollout."""
        probing, self._probing = self._probing, None
        await end(probing)
        self._watched, self._probed, self._served, self._away_since = None, set(), set(), {}
        self._faulted, self._again_at, self.fault = 0, 0.0, None

    async def _probe(self, rollout: Rollout) -> Decision | None:
        """The decision that a refusal leads to; None where it passes, or nothing has changed since it did.

        A refusal is noted nowhere, so the probe is due again until its decision has been applied. Raises `Unavailable`
        where it may not be the candidate's fault.
        """
        candidate = await self.context.policies.version(rollout.role, rollout.candidate.version)
        if await self.context.weights_of(candidate) is None:  # an upstream answers
            return None
        names = set(await self.context.answering(rollout.role))
        self._probed &= names  # one that was away may come back as another
        now = self.context.monotonic()
        self._away_since = {name: self._away_since.get(name, now) for name in self._served - names}
        faulted = rollout.statistics.canary.faulted
        if names <= self._probed and faulted <= self._faulted:
            return None
        stable = await self.context.policies.version(rollout.role, rollout.stable.version) if rollout.stable else None
        result = await self.context.gates[PROBE].check(candidate, stable)
        log.info("probed under traffic", role=rollout.role, policy=candidate.name, outcome=result.outcome)
        if result.outcome != FAILED:
            self._probed, self._faulted = _replicas_in(result), faulted
            self._served |= self._probed
            return None
        away = self._served - (_replicas_in(result) or names)
        if away := {name for name in away if now - self._away_since.get(name, now) < GONE_S}:
            served = ", ".join(sorted(away))
            refused = Unavailable(f"{result.reason}; but {served} passed it, and has not played it now: {MEND}")
            raise refused.quoting()
        return Decision(Verdict.ROLL_BACK, f"gate {PROBE}, repeated under traffic: {result.reason}", ITSELF)


def _replicas_in(result: GateResult) -> set[str]:
    """The replicas that played the probe, by its evidence; none where it was refused before anything was compared."""
    return set(result.evidence.get("replicas", ()))
