"""The loop of plans: drafts them for open patterns, has low-risk ones run where a role says so, and carries them out.

Only the leading analyst runs it. What it writes is a compare-and-set on what it read, and what it publishes follows
from what is written: a step that a kill kept from the trail is published by the next analyst that leads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from ratchet.analyst.domain.plan import (
    ANALYST,
    DRAFT,
    ENDS,
    POLICY,
    REJECTED,
    SUPERSEDED,
    approved,
    next_kind,
    stepped,
)
from ratchet.analyst.domain.proposal import drafted, proposed
from ratchet.analyst.domain.report import weekly_report
from ratchet.analyst.domain.trail import report_event, step_event, week_before
from ratchet.analyst.drafting import Drafting
from ratchet.analyst.effects import entry_of
from ratchet.analyst.executing import Executing
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.kv_plans import PlanStore
from ratchet.analyst.nats_trail import Trail
from ratchet.bus.kv import Entry
from ratchet.core.contract.learning import AdaptationPlan, Pattern
from ratchet.core.errors import Conflict, RatchetError
from ratchet.core.service.audit import Act, AuditLog, By

log = structlog.get_logger()

LOOK_S = 5.0
"""Between two looks at all plans."""
KNOWN_FOR = timedelta(days=1)
"""How long after a plan's end an analyst that begins to lead looks whether its steps are in the trail."""


@dataclass
class Plans:
    """What an analyst does with plans while it leads; one that leads anew has a new one."""

    store: PlanStore
    patterns: PatternStore
    trail: Trail
    drafting: Drafting
    executing: Executing
    audit: AuditLog
    self_approved: frozenset[str]
    """Roles whose low-risk plans run by themselves."""
    now: Callable[[], datetime]
    _reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]], init=False)
    _caught_up: bool = field(default=False, init=False)

    async def look(self) -> None:
        """Go through all plans once. Raises `Unavailable`."""
        patterns = {entry.value.pattern_id: entry.value for entry in await self.patterns.every()}
        entries = await self.store.every()
        if not self._caught_up:
            await self._publish_missing([entry.value for entry in entries])
            self._caught_up = True
        by_pattern: dict[str, list[AdaptationPlan]] = {}
        for entry in entries:
            by_pattern.setdefault(entry.value.pattern_id, []).append(entry.value)
        for pattern in patterns.values():
            await self._guarded(self._draft(pattern, by_pattern.get(pattern.pattern_id, [])), pattern.pattern_id)
        for entry in entries:
            if entry.value.state not in ENDS:
                await self._guarded(self._advance(entry, patterns), entry.value.plan_id)
        for role in {pattern.role for pattern in patterns.values()}:
            await self._guarded(self._report(role, [*patterns.values()], [entry.value for entry in entries]), role)

    async def _guarded(self, act: Awaitable[None], what: str) -> None:
        """One of them that cannot go on keeps none of the others."""
        try:
            await act
        except Conflict:
            log.info("another writer was faster: it is read again", of=what)
        except RatchetError as error:
            log.warning("it has to wait", of=what, reason=str(error))

    async def _draft(self, pattern: Pattern, plans: Sequence[AdaptationPlan]) -> None:
        kind = next_kind(pattern, plans)
        if kind is None:
            return
        change = proposed(pattern, kind, await self.drafting.material(pattern, kind))
        plan = drafted(pattern, change, entry_of(pattern.triggers), len(plans), self.now())
        await self.store.create(plan)
        await self.trail.publish([step_event(plan, 0)])

    async def _advance(self, entry: Entry[AdaptationPlan], patterns: dict[str, Pattern]) -> None:
        """As many steps as can be taken now."""
        plan, revision = entry.value, entry.revision
        while plan.state not in ENDS:
            after = await self._stepped(plan, patterns.get(plan.pattern_id))
            if after == plan:
                return
            plan, revision = after, await self.write(plan, after, revision)

    async def _stepped(self, plan: AdaptationPlan, pattern: Pattern | None) -> AdaptationPlan:
        now = self.now()
        if plan.state != DRAFT:
            return await self.executing.step(plan, now)
        if pattern is None or pattern.state != "open":
            return stepped(plan, REJECTED, now, ANALYST, f"{SUPERSEDED}its pattern is not open any more")
        if plan.risk == "low" and plan.role in self.self_approved:
            act = Act("approve_plan", By(POLICY), plan.role, [plan.plan_id])
            async with self.audit.act(act):
                return approved(plan, now, POLICY, "low-risk plans of the role run by themselves")
        return plan

    async def write(self, before: AdaptationPlan, after: AdaptationPlan, revision: int) -> int:
        """Write a plan, and publish what it did; the new revision. Raises `Conflict`."""
        revision = await self.store.update(after, revision)
        new = range(len(before.history), len(after.history))
        await self.trail.publish([step_event(after, n) for n in new])
        return revision

    async def _publish_missing(self, plans: Sequence[AdaptationPlan]) -> None:
        now = self.now()
        recent = [plan for plan in plans if plan.state not in ENDS or now - plan.history[-1].at < KNOWN_FOR]
        for role in {plan.role for plan in recent}:
            known = {event.event_id for event in await self.trail.read(role, lambda event: event.plan_id is not None)}
            steps = [step_event(plan, n) for plan in recent if plan.role == role for n in range(len(plan.history))]
            await self.trail.publish([step for step in steps if step.event_id not in known])

    async def _report(self, role: str, patterns: Sequence[Pattern], plans: Sequence[AdaptationPlan]) -> None:
        """Once a week, of the week that ended."""
        week, end = week_before(self.now())
        if (role, week) in self._reported:
            return
        report = weekly_report(
            role, [each for each in patterns if each.role == role], [plan for plan in plans if plan.role == role], end
        )
        event = report_event(report, week)
        if not await self.trail.read(role, lambda known: known.event_id == event.event_id, since=end):
            await self.trail.publish([event])
        self._reported.add((role, week))
