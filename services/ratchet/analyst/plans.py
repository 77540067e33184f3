"""The loop of plans: drafts them for open patterns, has low-risk ones run where a role says so, and carries them out.

Only the leading analyst runs it. What it writes is a compare-and-set on what it read, and what it publishes follows
from what is written: a step that a kill kept from the trail, of an analyst that decides or one that leads, is published
at the next look.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from msgspec.structs import replace

from ratchet.analyst import metrics
from ratchet.analyst.domain.patterns import CLOSED, DISMISSED, OPEN
from ratchet.analyst.domain.plan import (
    ANALYST,
    APPROVED,
    ENDS,
    EXECUTING,
    POLICY,
    REJECTED,
    SUPERSEDED,
    approved,
    changes_policy,
    next_kind,
    plan_id_of,
    stepped,
)
from ratchet.analyst.domain.proposal import drafted, proposed, unpromised
from ratchet.analyst.domain.report import weekly_report
from ratchet.analyst.domain.trail import report_event, step_event, week_before
from ratchet.analyst.drafting import Drafting
from ratchet.analyst.effects import entry_of, why_unmeasurable
from ratchet.analyst.executing import Executing
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.kv_plans import PlanStore
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.waiting import Waiting
from ratchet.bus.kv import Entry
from ratchet.core.contract.learning import AdaptationPlan, Pattern
from ratchet.core.errors import Conflict, RatchetError, Rejected
from ratchet.core.service.audit import Act, AuditLog, By

log = structlog.get_logger()

LOOK_S = 15.0
"""Between two looks at all plans."""
KNOWN_FOR = timedelta(days=1)
"""How long after a plan's end an analyst that begins to lead looks whether its steps are in the trail."""
ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a plan or pattern may raise that holds what no code of ours writes."""
KEPT = timedelta(days=400)
"""For so long what is over is kept: longer than the trail, whose steps forbid to draft a plan again that is lost."""
DRAFT_AGAIN = timedelta(minutes=10)
"""After a draft that did not come about: its material may be days of trajectories."""


@dataclass
class Plans:
    """What an analyst does with plans while it leads; one that leads anew has a new one."""

    store: PlanStore
    patterns: PatternStore
    trail: Trail
    drafting: Drafting
    executing: Executing
    waiting: Waiting
    audit: AuditLog
    self_approved: frozenset[str]
    """Roles whose low-risk plans run by themselves."""
    now: Callable[[], datetime]
    _reported: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]], init=False)
    _published: set[str] = field(default_factory=set[str], init=False)
    """Ids of the steps that are in the trail."""
    _read: set[str] = field(default_factory=set[str], init=False)
    """Roles whose trail was read for them."""
    _waits: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Why what cannot go on has to wait, by its id: said once."""
    _drafted: dict[str, datetime] = field(default_factory=dict[str, datetime], init=False)
    """When a draft was begun last, by pattern."""

    async def look(self) -> None:
        """Go through all plans once, and draft one more. Raises `Unavailable`."""
        known, entries = await self.patterns.every(), await self.store.every()
        patterns = {entry.value.pattern_id: entry.value for entry in known}
        plans = [entry.value for entry in entries]
        metrics.count(patterns.values(), plans)
        for role in {plan.role for plan in plans}:
            await self._guarded(self._publish_missing(role, [plan for plan in plans if plan.role == role]), role)
        busy = {plan.role for plan in plans if plan.state == EXECUTING and changes_policy(plan)}
        for entry in entries:
            if entry.value.state not in ENDS:
                await self._guarded(self._advance(entry, patterns, busy), entry.value.plan_id)
        await self._draft_next([*patterns.values()], plans)
        await self._guarded(self._forget(known, entries), "what is over")
        for role in {pattern.role for pattern in patterns.values()}:
            await self._guarded(self._report(role, [*patterns.values()], plans), f"report of {role}")

    async def _guarded(self, act: Awaitable[None], what: str) -> None:
        """One of them that cannot go on keeps none of the others."""
        try:
            await act
            self._waits.pop(what, None)
        except Conflict:
            log.info("another writer was faster: it is read again", of=what)
        except RatchetError as error:
            if self._waits.get(what) != str(error):
                log.warning("it has to wait", of=what, reason=str(error))
            self._waits[what] = str(error)
        except ODD as error:
            if self._waits.get(what) != repr(error):
                log.error("it cannot go on", of=what, exc_info=error)
            self._waits[what] = repr(error)

    async def _draft_next(self, patterns: Sequence[Pattern], plans: Sequence[AdaptationPlan]) -> None:
        """One draft a look: it may read weeks of trajectories, and canaries are watched between."""
        now = self.now()
        for pattern in patterns:
            begun = self._drafted.get(pattern.pattern_id)
            if begun is not None and now - begun < DRAFT_AGAIN:
                continue
            tried = [plan for plan in plans if plan.pattern_id == pattern.pattern_id]
            kind = next_kind(pattern, tried)
            if kind is not None:
                self._drafted[pattern.pattern_id] = now
                await self._guarded(self._draft(pattern, kind, len(tried)), pattern.pattern_id)
                return

    async def _draft(self, pattern: Pattern, kind: str, tries: int) -> None:
        """Unless the trail has it: then its record is lost or unreadable, and what was decided about it with it."""
        plan_id = plan_id_of(pattern, tries)
        if await self.trail.read(pattern.role, lambda event: event.plan_id == plan_id):
            raise Rejected(f"plan {plan_id} is in the trail, and its record is lost or unreadable: none is drafted")
        change = proposed(pattern, kind, await self.drafting.material(pattern, kind))
        plan = drafted(pattern, change, entry_of(pattern.triggers), tries, self.now())
        if why_unmeasurable(plan) is not None:
            plan = unpromised(plan)
        if (obstacle := await self.waiting.obstacle(plan)) is not None:
            plan = replace(plan, history=(replace(plan.history[0], reason=obstacle),))
        await self.store.create(plan)
        await self._publish(plan)

    async def _advance(self, entry: Entry[AdaptationPlan], patterns: dict[str, Pattern], busy: set[str]) -> None:
        """As many steps as can be taken now; `busy`: roles in which a plan that changes the policy is carried out."""
        plan, revision = entry.value, entry.revision
        while plan.state not in ENDS:
            if plan.state == APPROVED and plan.role in busy and changes_policy(plan):
                return
            after = await self._stepped(plan, patterns.get(plan.pattern_id))
            if after == plan:
                return
            if after.state == EXECUTING and changes_policy(after):
                busy.add(plan.role)
            plan, revision = after, await self.store.update(after, revision)
            await self._publish(plan)

    async def _stepped(self, plan: AdaptationPlan, pattern: Pattern | None) -> AdaptationPlan:
        now = self.now()
        if plan.state == EXECUTING or (plan.state == APPROVED and (pattern is None or pattern.state != DISMISSED)):
            return await self.executing.step(plan, now)
        if pattern is None or pattern.state != OPEN:
            return stepped(plan, REJECTED, now, ANALYST, f"{SUPERSEDED}its pattern is not open any more")
        if plan.risk == "low" and plan.role in self.self_approved and await self.waiting.obstacle(plan) is None:
            act = Act("approve_plan", By(POLICY), plan.role, [plan.plan_id])
            async with self.audit.act(act):
                return approved(plan, now, POLICY, "low-risk plans of the role run by themselves")
        return plan

    async def _forget(self, patterns: Sequence[Entry[Pattern]], plans: Sequence[Entry[AdaptationPlan]]) -> None:
        """Remove what has been over for `KEPT`. An open pattern keeps its plans: they tell what was tried."""
        before = self.now() - KEPT
        is_open = {entry.value.pattern_id for entry in patterns if entry.value.state == OPEN}
        for entry in plans:
            plan = entry.value
            if plan.state in ENDS and plan.history[-1].at < before and plan.pattern_id not in is_open:
                await self.store.remove(plan, entry.revision)
        for entry in patterns:
            closed_at = entry.value.closed_at
            if entry.value.state == CLOSED and closed_at is not None and closed_at < before:
                await self.patterns.remove(entry.value, entry.revision)

    async def _publish(self, plan: AdaptationPlan) -> None:
        """Those of its steps that are not in the trail: they have ids of their own."""
        steps = [step_event(plan, number) for number in range(len(plan.history))]
        missing = [step for step in steps if step.event_id not in self._published]
        await self.trail.publish(missing)
        self._published |= {step.event_id for step in missing}

    async def _publish_missing(self, role: str, plans: Sequence[AdaptationPlan]) -> None:
        """What the trail is read for once a lead: later all that is published is known, or is a decision made since."""
        now = self.now()
        recent = [plan for plan in plans if plan.state not in ENDS or now - plan.history[-1].at < KNOWN_FOR]
        if recent and role not in self._read:
            steps = await self.trail.read(role, lambda event: event.plan_id is not None)
            self._published |= {step.event_id for step in steps}
            self._read.add(role)
        for plan in recent:
            await self._publish(plan)

    async def _report(self, role: str, patterns: Sequence[Pattern], plans: Sequence[AdaptationPlan]) -> None:
        """Once a week, of the week that ended."""
        week, end = week_before(self.now())
        if (role, week) in self._reported:
            return
        report = weekly_report(
            role, [each for each in patterns if each.role == role], [plan for plan in plans if plan.role == role], end
        )
        event = report_event(report, role, week)
        if not await self.trail.read(role, lambda known: known.event_id == event.event_id, since=end):
            await self.trail.publish([event])
        self._reported.add((role, week))
