"""Prepares a candidate of one role for traffic: opens its rollout, runs its gates, and concludes what they decide."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from ratchet.bus.tasks import end
from ratchet.canary_deployer.domain import decisions, gating
from ratchet.canary_deployer.domain.estimates import (
    forecast,
    horizon_by_setting,
    measured_cost,
    measured_horizon,
    no_cost,
)
from ratchet.canary_deployer.domain.operators import Order
from ratchet.canary_deployer.domain.registry import as_sent
from ratchet.canary_deployer.domain.rollout import Decision, GateResult, Rollout, Verdict
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.subjects import subjects_before
from ratchet.canary_deployer.role_context import RoleContext
from ratchet.core.contract.http.rollouts import CostCap, Horizon
from ratchet.core.contract.policy_manifest import BUNDLE
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import Conflict, NotFound, Rejected, Unavailable
from ratchet.core.rules.arms import served

log = structlog.get_logger()


class Preparation:
    """Prepares the rollouts of one role; it writes nothing."""

    def __init__(self, context: RoleContext) -> None:
        self.context = context
        self._running: asyncio.Task[GateResult] | None = None

    async def open_rollout(
        self, policy: PolicyVersion, before: Rollout | None, decision: Decision, order: Order | None = None
    ) -> Rollout:
        """A new rollout of `policy` after the rollout `before`. Raises `Conflict` for the policy that is stable."""
        route = await self.context.policies.route(self.context.role)
        stable = route.stable if route else None
        if stable is None and policy.kind == BUNDLE:
            stable = served(as_sent(policy.role, policy.created_at))
        if stable is not None and stable.version == policy.version:
            raise Conflict(f"{policy.name} is already the stable policy of {self.context.role}")
        last_hash = decisions.newest_hash(before, route) or await self._logged_hash()
        rollout = decisions.new_rollout(policy, stable, last_hash, decision, self.context.now())
        rollout = await self._with_history(rollout)
        if order is None:
            return rollout
        waived = (
            gating.waived_results(policy, list(self.context.gates), order.actor, order.reason) if order.override else ()
        )
        return msgspec.structs.replace(
            rollout, asked_strategy=order.strategy, override=order.override, gates=waived or rollout.gates
        )

    async def _logged_hash(self) -> str | None:
        """The end of the audit chain by the log alone: of a role that was removed once, and has come back."""
        logged = await self.context.decisions_of(self.context.role)
        return logged[-1].hash if logged else None

    async def next_gate(self, rollout: Rollout) -> str | None:
        """The gate that is due; None when all have run or one has failed."""
        if gating.refusal(rollout):
            return None
        kind = (await self.context.policies.version(self.context.role, rollout.candidate.version)).kind
        return next(iter(gating.due_gates(rollout, kind, list(self.context.gates), self.context.rules)), None)

    async def run_gate(self, name: str, rollout: Rollout) -> GateResult | None:
        """The result of a gate; None when `cancel_gate` ended it."""
        candidate = await self.context.policies.version(self.context.role, rollout.candidate.version)
        stable = (
            await self.context.policies.version(self.context.role, rollout.stable.version) if rollout.stable else None
        )
        running = self._running = asyncio.create_task(self.context.gates[name].check(candidate, stable))
        try:
            await asyncio.wait({running})
        finally:
            self._running = None
            await end(running)
        if running.cancelled():
            return None
        result = running.result()
        if not isinstance(result, GateResult) or result.gate != name:  # pyright: ignore[reportUnnecessaryIsInstance] - a gate may come from another package
            raise TypeError(f"gate {name} returned no result of its own: {type(result).__name__}")
        log.info("gate", policy=candidate.name, gate=name, outcome=result.outcome)  # the audit has the engine's words
        return result

    async def cancel_gate(self) -> None:
        """End the gate that is running, if one is."""
        await end(self._running)

    async def conclude_gates(self, rollout: Rollout, approved: Decision | None = None) -> tuple[Rollout, Decision]:
        """The decision that the gates lead to. Statistics begin with the messages after this moment.

        `approved`: the operator's decision that stands in for gates which could not decide.
        """
        decision, strategy = gating.gates_decision(rollout, self.context.strategy, self.context.rules, approved)
        fresh = await self._with_history(rollout)
        expected = rollout.forecast if approved is None and rollout.forecast else fresh.forecast
        rollout = msgspec.structs.replace(fresh, strategy=strategy, forecast=expected)
        rollout, decision = gating.timely_decision(rollout, decision, self.context.rules, approved)
        if decision.verdict is Verdict.START and rollout.stable is not None:
            rollout = msgspec.structs.replace(rollout, horizon=await self._horizon(rollout, rollout.stable.version))
        places = msgspec.structs.asdict(await self.context.source.newest_places())
        return msgspec.structs.replace(rollout, statistics=Statistics(), **places), decision

    async def _with_history(self, rollout: Rollout) -> Rollout:
        """The rollout with what is known of the role's subjects and stable's costs, and how long it will take."""
        role, now, rules = self.context.role, self.context.now(), self.context.rules
        starts, span_s = await self.context.source.recent_starts(role, now)
        before = subjects_before(await self.context.source.recent_subjects(role, now))
        cost = None if rollout.stable is None else await self._cost(rollout.stable.version)
        return msgspec.structs.replace(
            rollout, forecast=forecast(starts, span_s, rules, before, cost), subjects_before=before, cost=cost
        )

    async def _cost(self, stable: int) -> CostCap:
        """The cap of the rollout's costs, from what trajectories of version `stable` cost; else why there is none."""
        if not self.context.rules.compares_cost:
            return no_cost("the setting leaves it out")
        try:
            policy = await self.context.policies.version(self.context.role, stable)
            return measured_cost(await self.context.trajectory_costs(policy), self.context.rules)
        except (Unavailable, Rejected, NotFound) as error:
            log.warning("cost not compared", role=self.context.role, reason=str(error))
            return no_cost(str(error))

    async def _horizon(self, rollout: Rollout, stable: int) -> Horizon:
        """The rollout's horizon, from how long outcomes of version `stable` took; else the setting, and why."""
        if not self.context.rules.outcomes:
            return horizon_by_setting("the role has no outcomes", self.context.rules)
        try:
            policy = await self.context.policies.version(self.context.role, stable)
            took_s = await self.context.outcome_times(policy, self.context.rules.horizon_max_s)
        except (Unavailable, Rejected) as error:
            log.warning("horizon by setting", role=self.context.role, reason=str(error))
            return horizon_by_setting(str(error), self.context.rules)
        return measured_horizon(took_s, rollout.forecast, self.context.rules)
