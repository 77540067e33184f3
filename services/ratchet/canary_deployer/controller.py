"""Drives the rollouts of one role, one at a time: gates, then traffic, then a verdict, then the next candidate."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.canary_deployer import metrics
from ratchet.canary_deployer.domain import decisions, gating, operators
from ratchet.canary_deployer.domain.estimates import Forecast, Horizon, forecast, horizon_by_setting, measured_horizon
from ratchet.canary_deployer.domain.operators import Act, Order
from ratchet.canary_deployer.domain.rollout import (
    ITSELF,
    WITH_TRAFFIC,
    Decision,
    GateResult,
    IllegalMove,
    Rollout,
    State,
    Verdict,
)
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.strategies import IMMEDIATE
from ratchet.canary_deployer.domain.verdicts import decide, in_soak
from ratchet.canary_deployer.gates.base import Gate
from ratchet.canary_deployer.nats_events import Events, Places, PlacesLost, Read
from ratchet.canary_deployer.rollout_store import Office, RolloutKeeper
from ratchet.contract.state import PolicyStage, PolicyVersion
from ratchet.errors import BadRequest, Conflict, NotFound, RatchetError, Rejected, Unavailable

log = structlog.get_logger()

LOOK_AGAIN_S = 30.0
"""With nothing to do, look for candidates this often although nobody called."""
AFTER_FAULT_S = 1.0
"""Pause before the state is read again after a fault of a neighbour."""
BLIND_S = 15.0
"""So long a canary goes on whose evidence is not read, judged and saved; then its lease grows no more until it is."""
LONGEST_PAUSE_S = 30.0
"""What fails by itself will fail again, at the cost of a gate perhaps: a pause is twice the one before, up to this."""


class EventSource(Protocol):
    """Where starts, turns and rewards come from."""

    async def places(self) -> Places:
        """The newest message of each stream."""
        ...

    async def open(self, role: str, places: Places) -> Events:
        """Read on after these places."""
        ...


class Traffic(Protocol):
    """How many trajectories of a role have started lately."""

    async def starts(self, role: str, now: datetime) -> tuple[int, float]:
        """How many, and in how many seconds."""
        ...


class History(Protocol):
    """How long outcomes took before."""

    async def outcome_times(self, policy: PolicyVersion, within_s: float) -> Sequence[float]:
        """Of recent trajectories, in seconds. Raises `Unavailable` or `Rejected`."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What a driver works with besides its keeper."""

    gates: Mapping[str, Gate]
    source: EventSource
    traffic: Traffic
    history: History
    strategy: str
    """`canary`, `blue_green` or `auto`."""
    tick_s: float


class RolloutController:
    """One lock: operators' acts and the driver's own steps take turns."""

    def __init__(self, role: str, office: Office, work: Work) -> None:
        self.role = role
        self._office = office = dataclasses.replace(office, rules=office.rules.for_role(role))
        self._work = work
        self._keeper = RolloutKeeper(role, office)
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stopping = False
        self._events: Events | None = None
        self._reading: tuple[str, int] | None = None
        self._blind_since: tuple[str, float] | None = None
        """For which rollout and since when its evidence has not been read, judged and saved."""
        self._gate: asyncio.Task[GateResult] | None = None
        self._called = True
        self._looked_at = 0.0
        self.fault: str | None = None
        """Why the last step failed; None when it did not."""

    async def run(self) -> None:
        """Step until stopped. After a fault everything is read again."""
        pause_s = AFTER_FAULT_S
        while not self._stopping:
            try:
                await self.step()
                self.fault, pause_s = None, AFTER_FAULT_S
            except (Unavailable, Conflict) as error:
                await self._failed(str(error), AFTER_FAULT_S)
            except Exception as error:  # the boundary: one role's fault must not stop the others
                known = isinstance(error, RatchetError)
                if not known:
                    log.exception("rollout step failed", role=self.role)
                await self._failed(str(error) if known else repr(error), pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        await self._save_statistics()
        await self._close_events()

    async def stop(self) -> None:
        """Return from `run` soon; a gate that runs is given up and asked again after a restart."""
        self._stopping = True
        await end(self._gate)
        self.wake()

    def wake(self) -> None:
        """There may be something to do."""
        self._called = True
        self._wake.set()

    async def current(self) -> Rollout | None:
        """The newest rollout of the role, with its statistics as of now."""
        async with self._lock:
            return await self._keeper.load()

    async def step(self) -> None:
        """Do the one thing that is to be done now."""
        async with self._lock:
            rollout = await self._keeper.load()
            if rollout is not None and rollout.outbox:
                await self._keeper.make_true(rollout)
                return
        if rollout is None or not rollout.active:
            await self._begin_next()
        elif await self._superseded(rollout):
            return
        elif rollout.state is State.GATING:
            await self._pass_gates(rollout)
        elif rollout.state in WITH_TRAFFIC:
            await self._watch(rollout)
        else:
            await self._pause(LOOK_AGAIN_S)

    async def act(self, act: Act, order: Order) -> Rollout:
        """An operator's act. Raises `NotFound`, `Conflict` or `IllegalMove`; the message names the next step."""
        try:
            async with self._lock:
                rollout, decision = await self._judged(await self._settled(), act, order)
                done = await self._keeper.take(self._keeper.aged(rollout), decision)
                await end(self._gate)
                return done
        finally:
            self.wake()

    async def would_act(self, act: Act, order: Order) -> Rollout:
        """The rollout as `act` would leave it; nothing changes. Raises what `act` raises."""
        async with self._lock:
            rollout, decision = await self._judged(await self._keeper.load(), act, order)
            return await self._keeper.foreseen(rollout, decision)

    async def start(self, policy: PolicyVersion, order: Order) -> Rollout:
        """Start a rollout of `policy`, or approve it if it waits for that. Raises `Conflict`."""
        try:
            async with self._lock:
                rollout, decision = await self._ordered(await self._settled(), policy, order)
                if decision is not None:
                    return await self._keeper.take(rollout, decision)
                await self._keeper.open(rollout)
                return rollout
        finally:
            self.wake()

    async def would_start(self, policy: PolicyVersion, order: Order) -> Rollout:
        """The rollout as `start` would leave it; nothing changes. Raises what `start` raises."""
        async with self._lock:
            rollout, decision = await self._ordered(await self._keeper.load(), policy, order)
            return await self._keeper.foreseen(rollout, decision) if decision is not None else rollout

    async def _settled(self) -> Rollout | None:
        """The newest rollout, once everything that follows from its last decision is true."""
        rollout = await self._keeper.load()
        return await self._keeper.make_true(rollout) if rollout is not None and rollout.outbox else rollout

    async def _judged(self, rollout: Rollout | None, act: Act, order: Order) -> tuple[Rollout, Decision]:
        """The rollout that an act is about, and the decision that it stands for."""
        if act is Act.REVERT:
            return await self._reverted(rollout, order)
        if rollout is None:
            raise NotFound(f"there was no rollout of {self.role} yet")
        if act is Act.APPROVE:
            return await self._approved(rollout, order)
        return rollout, operators.decision_for(rollout, act, order, self._office.rules)

    async def _approved(self, rollout: Rollout, order: Order) -> tuple[Rollout, Decision]:
        """Start the canary of what waits."""
        if rollout.state is not State.AWAITING_APPROVAL:
            raise IllegalMove(rollout.state, Act.APPROVE)
        return await self._concluded(rollout, order.approval())

    async def _reverted(self, rollout: Rollout | None, order: Order) -> tuple[Rollout, Decision]:
        """Back to the policy that served before the last promotion, whatever runs; the queue is parked."""
        if rollout is not None and in_soak(rollout, self._office.rules):
            parked = msgspec.structs.replace(rollout, parked=True)
            return parked, Decision(Verdict.ROLL_BACK, order.reason, order.actor)
        route = await self._office.policies.route(self.role)
        if route is None or route.previous is None or route.stable is None:
            raise Conflict(operators.why_no_revert(self.role, route))
        decision = Decision(Verdict.REVERT, order.reason, order.actor, "manual_approved")
        previous = await self._office.policies.served(self.role, route.previous, self._office.now())
        return decisions.new_revert(previous, route, rollout, decision, self._office.now()), decision

    async def _ordered(
        self, rollout: Rollout | None, policy: PolicyVersion, order: Order
    ) -> tuple[Rollout, Decision | None]:
        """The new rollout that an order opens, or the waiting one with the decision that approves it."""
        if order.strategy == IMMEDIATE and not order.override:
            raise BadRequest(
                "strategy immediate is a full roll-out that nobody watches: it takes override as well", param="override"
            )
        if rollout is None or not rollout.active:
            return await self._opened(policy, order.approval(), order), None
        if rollout.state is not State.AWAITING_APPROVAL or rollout.candidate.version != policy.version:
            raise Conflict(operators.why_no_start(rollout))
        if order.strategy is not None:
            rollout = msgspec.structs.replace(rollout, asked_strategy=order.strategy)
        return await self._concluded(rollout, order.approval())

    async def _begin_next(self) -> None:
        """Open a rollout of the newest registered candidate, or wait to be called. Older ones are superseded."""
        await self._close_events()
        waiting = await self._candidates()
        if not waiting:
            await self._pause(LOOK_AGAIN_S)
            return
        async with self._lock:
            rollout = await self._keeper.load()
            if rollout is not None and (rollout.active or rollout.parked):
                return
            *older, newest = waiting
            for policy in older:
                await self._keeper.supersede(policy, newest)
            opened = await self._opened(newest, Decision(Verdict.START, "registered", ITSELF))
            await self._keeper.open(opened)

    async def _candidates(self) -> list[PolicyVersion]:
        """Registered policies that have not begun, oldest first; none while the queue is parked."""
        rollout = self._keeper.rollout
        if rollout is not None and rollout.parked:
            return []
        return [one for one in await self._office.policies.versions(self.role) if one.stage == PolicyStage.REGISTERED]

    async def _superseded(self, rollout: Rollout) -> bool:
        """End a rollout in whose place a newer candidate may step; looked at when called, and now and then."""
        now = self._office.monotonic()
        due = self._called or now - self._looked_at >= LOOK_AGAIN_S
        if not due or not decisions.may_be_superseded(rollout, self._office.rules):
            return False
        self._called, self._looked_at = False, now
        newer = [one for one in await self._candidates() if one.version > rollout.candidate.version]
        if not newer:
            return False
        async with self._lock:
            current = await self._keeper.load()
            if current is None or (current.rollout_id, current.state) != (rollout.rollout_id, rollout.state):
                return True
            reason = f"superseded by {newer[-1].name} {decisions.WHY_SUPERSEDED[current.state]}"
            await self._keeper.take(current, Decision(Verdict.SUPERSEDE, reason, ITSELF))
        return True

    async def _opened(self, policy: PolicyVersion, decision: Decision, order: Order | None = None) -> Rollout:
        route = await self._office.policies.route(self.role)
        stable = route.stable if route else None
        if stable is not None and stable.version == policy.version:
            raise Conflict(f"{policy.name} is already the stable policy of {self.role}")
        rollout = decisions.new_rollout(policy, stable, self._keeper.rollout, decision, self._office.now())
        rollout = msgspec.structs.replace(rollout, forecast=await self._expected())
        if order is not None:
            rollout = msgspec.structs.replace(rollout, asked_strategy=order.strategy)
        if order is not None and order.override:
            waived = gating.waived_results(list(self._work.gates), policy.gate, order.actor, order.reason)
            rollout = msgspec.structs.replace(rollout, override=True, gates=waived)
        return rollout

    async def _pass_gates(self, rollout: Rollout) -> None:
        """Ask the next gate without holding the lock; conclude when none is left or one has failed."""
        due = [] if gating.refusal(rollout) else gating.due_gates(rollout, list(self._work.gates), self._office.rules)
        result = await self._asked(rollout, due[0]) if due else None
        async with self._lock:
            current = await self._keeper.load()
            if current is None or current.rollout_id != rollout.rollout_id or current.state is not State.GATING:
                return
            if result is not None:
                current = decisions.with_gate_result(current, result)
                await self._keeper.note(current)
                metrics.show_gates(current)
            if not due:
                await self._keeper.take(*await self._concluded(current))

    async def _asked(self, rollout: Rollout, name: str) -> GateResult | None:
        """What gate `name` says; None when it was given up because of a stop or an operator's act."""
        candidate = await self._office.policies.version(self.role, rollout.candidate.version)
        stable = await self._office.policies.version(self.role, rollout.stable.version) if rollout.stable else None
        asking = self._gate = asyncio.create_task(self._work.gates[name].check(candidate, stable))
        try:
            await asyncio.wait({asking})
        finally:
            self._gate = None
            await end(asking)
        if asking.cancelled():
            return None
        result = asking.result()
        if not isinstance(result, GateResult) or result.gate != name:  # pyright: ignore[reportUnnecessaryIsInstance] - a gate may come from another package
            raise TypeError(f"gate {name} returned no result of its own: {type(result).__name__}")
        log.info("gate", policy=candidate.name, gate=name, outcome=result.outcome)  # the audit has the engine's words
        return result

    async def _concluded(self, rollout: Rollout, approved: Decision | None = None) -> tuple[Rollout, Decision]:
        """The decision that the gates lead to. Statistics begin with the messages after this moment."""
        rules = self._office.rules
        decision, strategy = gating.gates_decision(rollout, self._work.strategy, rules, approved)
        expected = rollout.forecast if approved is None and rollout.forecast else await self._expected()
        rollout = msgspec.structs.replace(rollout, strategy=strategy, forecast=expected)
        rollout, decision = gating.timely_decision(rollout, decision, rules, approved)
        if decision.verdict is Verdict.START and rollout.stable is not None:
            rollout = msgspec.structs.replace(rollout, horizon=await self._horizon(rollout, rollout.stable.version))
        places = msgspec.structs.asdict(await self._work.source.places())
        return msgspec.structs.replace(rollout, statistics=Statistics(), **places), decision

    async def _horizon(self, rollout: Rollout, stable: int) -> Horizon:
        """The rollout's horizon, from how long outcomes of version `stable` took; else the setting, which says why."""
        rules = self._office.rules
        if not rules.outcomes:
            return horizon_by_setting("the role has no outcomes", rules)
        try:
            policy = await self._office.policies.version(self.role, stable)
            took_s = await self._work.history.outcome_times(policy, rules.horizon_max_s)
        except (Unavailable, Rejected) as error:
            log.warning("horizon by setting", role=self.role, reason=str(error))
            return horizon_by_setting(str(error), rules)
        return measured_horizon(took_s, rollout.forecast, rules)

    async def _expected(self) -> Forecast | None:
        """How long a rollout would take at the role's traffic."""
        starts, span_s = await self._work.traffic.starts(self.role, self._office.now())
        return forecast(starts, span_s, self._office.rules)

    async def _watch(self, rollout: Rollout) -> None:
        """Renew the lease, wait for trajectories, fold them, decide."""
        if self._sees(rollout):
            async with self._lock:
                await self._keeper.renew(rollout)
        if self._keeper.lost is not None:
            await self._end_without_evidence(rollout, self._keeper.lost)
            return
        try:
            events = await self._opened_events(rollout)
        except PlacesLost as error:
            await self._end_without_evidence(rollout, str(error))
            return
        read = await events.next(self._work.tick_s)
        async with self._lock:
            current = await self._keeper.load()
            if current is None or self._reading != (current.rollout_id, self._keeper.generation):
                return
            if current.state in WITH_TRAFFIC:
                await self._fold(current, read)
        self._blind_since = None

    def _sees(self, rollout: Rollout) -> bool:
        """Whether the evidence was read, judged and saved lately: a canary that nobody watches must not go on."""
        now = self._office.monotonic()
        if self._blind_since is None or self._blind_since[0] != rollout.rollout_id:
            self._blind_since = (rollout.rollout_id, now)
        return now - self._blind_since[1] < BLIND_S

    async def _end_without_evidence(self, rollout: Rollout, reason: str) -> None:
        """Roll back: what was judged cannot be told from what comes, so nothing can be proven any more."""
        async with self._lock:
            current = await self._keeper.load()
            if current is not None and current.rollout_id == rollout.rollout_id and current.state in WITH_TRAFFIC:
                await self._keeper.take(current, Decision(Verdict.ROLL_BACK, reason, ITSELF))

    async def _fold(self, rollout: Rollout, read: Read) -> None:
        rules = self._office.rules
        rollout = self._keeper.folded(self._keeper.aged(rollout), read)
        decision = decide(rollout, rules)
        if decision is not None:
            await self._keeper.take(rollout, decision)
        else:
            await self._keeper.observe(rollout)

    async def _opened_events(self, rollout: Rollout) -> Events:
        """Messages after what the record has; opened anew for another rollout and after every fault."""
        reading = (rollout.rollout_id, self._keeper.generation)
        if self._events is None or self._reading != reading:
            await self._close_events()
            places = Places(rollout.start_seq, rollout.turn_seq, rollout.reward_seq, rollout.streams_made)
            self._events = await self._work.source.open(self.role, places)
            self._reading = reading
        return self._events

    async def _close_events(self) -> None:
        events, self._events, self._reading = self._events, None, None
        if events is not None:
            await events.close()

    async def _failed(self, reason: str, pause_s: float) -> None:
        log.warning("rollout waits", role=self.role, reason=reason, again_in_s=pause_s)
        self.fault = reason
        self._keeper.forget()
        await self._pause(pause_s)

    async def _save_statistics(self) -> None:
        """At the end: what is saved need not be folded again. Failing that, it will be."""
        rollout = self._keeper.rollout
        if rollout is not None and rollout.state in WITH_TRAFFIC and not rollout.outbox:
            with suppress(RatchetError):
                await self._keeper.note(rollout)

    async def _pause(self, longest_s: float) -> None:
        """Wait to be called, at most so long."""
        if not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self._wake.wait()
        self._wake.clear()
