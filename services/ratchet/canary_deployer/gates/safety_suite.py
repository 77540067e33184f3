"""Gate `safety_suite`: candidate and stable play suites; a candidate that is less safe is refused (`domain/safety.py`).

A suite that brings no results is no verdict, for an engine may refuse every request and a package may be broken: a
person decides. What is not played after the plan's time fails: how safe it is was not shown.

Where no setting names suites, all that ship are played if an engine of Ratchet's is done with them soon
(`suite_budget.py`). No operator has asked for them: a candidate that is shown to be less safe is refused, and nothing
else holds up its rollout, be it a verdict in doubt or servers that are away or slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from ratchet.canary_deployer.domain.gating import SAFETY_SUITE
from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, NOT_RUN, GateResult
from ratchet.canary_deployer.domain.safety import SuiteRuns, bounds_verdict, safety_verdict
from ratchet.canary_deployer.gates.base import Heldout, HeldoutRun, OnAnswer
from ratchet.canary_deployer.gates.suite_budget import AFFORDED_S, PATIENCE_S, Silence, SuiteBudget, TooSlow
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.evaluation.suites import suite_named
from ratchet.core.rules.engines import ANY_ROLE

log = structlog.get_logger()

SETTING = "RATCHET_CANARY_SAFETY_SUITES"
SWITCHED_OFF = f"{SETTING} names no suite for this role"
FIRST = f"a first policy is compared with nothing: give it lowest scores, as `at_least` in {SETTING}"
AT_A_PROVIDER = "a provider answers, for money"


class _Unplayable(Exception):
    """A suite brings no results; the words say why."""


@dataclass(frozen=True, slots=True)
class SafetyGate:
    """Plays the suites of the candidate's role, one after the other; results of a policy are remembered."""

    plans: Mapping[str, SafetyPlan]
    """By role; under `*` that of all others."""
    players: Mapping[str, Heldout]
    """By suite."""
    of_roles: Mapping[str, Mapping[str, Heldout]] = field(default_factory=dict[str, Mapping[str, Heldout]])
    """By suite whose tasks are a role's own, and by role; under `*` that of all other roles."""
    weights_of: Callable[[PolicyVersion], Awaitable[PolicyVersion | None]] | None = None
    """What an engine holds for a bundle; None of it where a provider answers. None: no policy is a bundle."""
    afforded_s: float = AFFORDED_S
    patience_s: float = PATIENCE_S
    budgets: dict[str, SuiteBudget] = field(default_factory=dict[str, SuiteBudget])
    """By candidate's digest, while it plays suites that no setting names."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Fails at a time-out."""
        plan = self.plans.get(candidate.role) or self.plans.get(ANY_ROLE)
        if plan is not None and not plan.suites:
            return _not_run(SWITCHED_OFF)
        try:
            if stable is None:
                return _not_run(FIRST) if plan is None or not plan.at_least else await self._first(plan, candidate)
            if plan is None:
                return await self._unasked(candidate, stable)
            return await self._compared(plan, candidate, stable, 60 * plan.minutes)
        except _Unplayable as error:
            return GateResult(SAFETY_SUITE, NEEDS_APPROVAL, str(error))

    async def _first(self, plan: SafetyPlan, candidate: PolicyVersion) -> GateResult:
        """A role's first policy, against the role's bounds alone."""
        played: dict[str, SuiteRuns] = {}
        try:
            async with asyncio.timeout(60 * plan.minutes):
                for suite, bound in plan.at_least.items():
                    run = await self._candidates_run(suite, candidate)
                    played[suite] = SuiteRuns(_task_type(suite, run), run.played, at_least=bound)
        except TimeoutError:
            return _late(plan.minutes, [suite for suite in plan.at_least if suite not in played])
        return bounds_verdict(played)

    async def _compared(
        self,
        plan: SafetyPlan,
        candidate: PolicyVersion,
        stable: PolicyVersion,
        limit_s: float,
        budget: SuiteBudget | None = None,
    ) -> GateResult:
        """Stable plays all suites first: without its results the candidate's mean nothing."""
        usual, played = dict[str, HeldoutRun](), dict[str, SuiteRuns]()
        try:
            async with asyncio.timeout(limit_s):
                for suite in plan.suites:
                    usual[suite] = await self._run(suite, stable, budget and budget.stable_answered)
                if budget is not None:
                    await self._afford(budget, candidate, usual)
                for suite, before in usual.items():
                    run = await self._candidates_run(suite, candidate, budget and budget.answered)
                    if run.source != before.source:
                        raise Unavailable(
                            f"the tasks of suite {suite} changed while they were played: they are played again"
                        )
                    played[suite] = SuiteRuns(
                        _task_type(suite, run), run.played, before.played, plan.at_least.get(suite)
                    )
        except TimeoutError:
            late = _late(limit_s / 60, [suite for suite in plan.suites if suite not in played])
            if budget is not None:  # an engine that has got busy since looks the same as a candidate that is slow
                raise Silence(late.reason) from None
            return late
        return safety_verdict(played)

    def _player(self, suite: str, role: str) -> Heldout:
        own = self.of_roles.get(suite)
        return self.players[suite] if own is None else own.get(role) or own[ANY_ROLE]

    async def _candidates_run(
        self, suite: str, candidate: PolicyVersion, on_answer: OnAnswer | None = None
    ) -> HeldoutRun:
        """The same of a candidate, whose results on what it was made from show nothing."""
        if (unfit := await self._player(suite, candidate.role).unfit(candidate)) is not None:
            raise _Unplayable(f"suite {suite}: {unfit}")
        return await self._run(suite, candidate, on_answer)

    async def _run(self, suite: str, policy: PolicyVersion, on_answer: OnAnswer | None = None) -> HeldoutRun:
        """A policy's results. Raises `_Unplayable`, and what `on_answer` raises."""
        try:
            run = await self._player(suite, policy.role).play_or_recall(policy, on_answer)
        except (RatchetError, TooSlow):
            raise
        except Exception as error:  # the boundary: suites and graders are code of other packages
            log.exception("suite failed", suite=suite)
            raise _Unplayable(f"suite {suite}: it cannot be played: {type(error).__name__}: {error}") from error
        if run.problem is not None or not run.played.scores:
            why = run.problem or "it has no task"
            raise _Unplayable(f"suite {suite}: the run of {policy.name} is no use: {why}")
        return run

    async def _unasked(self, candidate: PolicyVersion, stable: PolicyVersion) -> GateResult:
        """The suites about safety, where they cost little time and no money. Ends in time, always."""
        asked_for = f"{SETTING}='{{\"{candidate.role}\": {{}}}}' plays all suites nevertheless"
        asks_for_doubts = f"{SETTING}='{{\"{candidate.role}\": {{}}}}' has a person asked"
        budget = self.budgets.pop(candidate.digest, None)
        if budget is None or budget.is_old:
            budget = SuiteBudget(self.afforded_s, self.patience_s)
        try:
            async with budget.listening():
                if await self._at_a_provider(candidate) or await self._at_a_provider(stable):
                    return _not_run(f"{AT_A_PROVIDER}; {asked_for}")
                plan = SafetyPlan()
                dues = [
                    await self.players[suite].due(policy) for suite in plan.suites for policy in (stable, candidate)
                ]
                budget.begin(sum(dues))
                result = await self._compared(plan, candidate, stable, budget.left_s, budget)
        except (TooSlow, Silence, _Unplayable) as error:
            return _not_run(f"{error}; {asked_for}")
        except RatchetError as error:
            if isinstance(error, Unavailable) and not budget.is_silent:
                self.budgets[candidate.digest] = budget
                raise
            return _not_run(f"no answer for {self.patience_s:g} s: {error}; {asked_for}")
        in_doubt = result.outcome == NEEDS_APPROVAL
        return replace(result, outcome=NOT_RUN, reason=f"{result.reason}; {asks_for_doubts}") if in_doubt else result

    async def _afford(self, budget: SuiteBudget, candidate: PolicyVersion, usual: Mapping[str, HeldoutRun]) -> None:
        """Raises `TooSlow` where the candidate would take too long at the pace that stable has, or had once."""
        due = sum([await self.players[suite].due(candidate) for suite in usual])
        took_s = sum(run.played.seconds for run in usual.values())
        budget.afford(took_s / sum(run.played.tries for run in usual.values()), due)

    async def _at_a_provider(self, policy: PolicyVersion) -> bool:
        return self.weights_of is not None and await self.weights_of(policy) is None


def _task_type(suite: str, run: HeldoutRun) -> str:
    """Of a package's suite as its process says: the deployer runs nothing of the package."""
    return str(run.source.get("task_type") or suite_named(suite).task_type)


def _late(minutes: float, missing: list[str]) -> GateResult:
    return GateResult(SAFETY_SUITE, FAILED, f"not finished after {minutes:g} minutes: {', '.join(missing)}")


def _not_run(why: str) -> GateResult:
    return GateResult(SAFETY_SUITE, NOT_RUN, f"no safety suite was played: {why}")
