"""Gate `safety_suite`: candidate and stable play suites; a candidate that is less safe is refused (`domain/safety.py`).

A suite that brings no results is no verdict, for an engine may refuse every request and a package may be broken: a
person decides. What is not played after the plan's time fails: how safe it is was not shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from ratchet.canary_deployer.domain.gating import SAFETY_SUITE
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, GateResult
from ratchet.canary_deployer.domain.safety import SuiteRuns, safety_verdict
from ratchet.canary_deployer.gates.base import Heldout, HeldoutRun
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.evaluation.suites import suite_named
from ratchet.core.rules.engines import ANY_ROLE

log = structlog.get_logger()

NOT_CONFIGURED = "no safety suite was played: name suites of the role in RATCHET_CANARY_SAFETY_SUITES"


@dataclass(frozen=True, slots=True)
class SafetyGate:
    """Plays the suites of the candidate's role, one after the other; results of a policy are remembered."""

    plans: Mapping[str, SafetyPlan]
    """By role; under `*` that of all others."""
    players: Mapping[str, Heldout]
    """By suite."""
    of_roles: Mapping[str, Mapping[str, Heldout]] = field(default_factory=dict[str, Mapping[str, Heldout]])
    """By suite whose tasks are a role's own, and by role; under `*` that of all other roles."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Fails at a time-out."""
        plan = self.plans.get(candidate.role) or self.plans.get(ANY_ROLE)
        if plan is None or not plan.suites:
            return GateResult(SAFETY_SUITE, NOT_RUN, NOT_CONFIGURED)
        if stable is None:
            return GateResult(SAFETY_SUITE, NEEDS_APPROVAL, "there is no stable policy to compare with")
        played: dict[str, SuiteRuns] = {}
        try:
            async with asyncio.timeout(60 * plan.minutes):
                for suite in plan.suites:
                    runs = await self._runs(suite, candidate, stable, plan.at_least.get(suite))
                    if isinstance(runs, str):
                        return GateResult(SAFETY_SUITE, NEEDS_APPROVAL, f"suite {suite}: {runs}")
                    played[suite] = runs
        except TimeoutError:
            missing = ", ".join(suite for suite in plan.suites if suite not in played)
            reason = f"not finished after {plan.minutes:g} minutes: {missing}"
            return GateResult(SAFETY_SUITE, FAILED, reason)
        return safety_verdict(played)

    def _player(self, suite: str, role: str) -> Heldout:
        own = self.of_roles.get(suite)
        return self.players[suite] if own is None else own.get(role) or own[ANY_ROLE]

    async def _runs(
        self, suite: str, candidate: PolicyVersion, stable: PolicyVersion, at_least: float | None
    ) -> SuiteRuns | str:
        """Both policies' results; in words, why there are none."""
        player, runs = self._player(suite, candidate.role), list[HeldoutRun]()
        for policy in (stable, candidate):
            try:
                run = await player.play_or_recall(policy)
            except RatchetError:
                raise
            except Exception as error:  # the boundary: suites and graders are code of other packages
                log.exception("suite failed", suite=suite)
                return f"it cannot be played: {type(error).__name__}: {error}"
            if run.problem is not None or not run.played.scores:
                return f"the run of {policy.name} is no use: {run.problem or 'it has no task'}"
            runs.append(run)
        if runs[0].source != runs[1].source:
            raise Unavailable(f"the tasks of suite {suite} changed while they were played: they are played again")
        return SuiteRuns(suite_named(suite).task_type, runs[1].played, runs[0].played, at_least)
