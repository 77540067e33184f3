"""The HTTP API: what goes wrong, and the trail of what was done about it.

A key with `view` of a role sees its patterns; `operate` dismisses them and asks for analyses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Protocol

from msgspec.structs import replace
from pydantic import Field

from ratchet.analyst.domain.looking import dismissal, reopening
from ratchet.analyst.http_episodes import EpisodeRoutes
from ratchet.analyst.http_plans import UNKNOWN_ROLE, PlanRoutes, RoleName, require_known
from ratchet.analyst.kv_patterns import PatternStore
from ratchet.analyst.mining.texts import sentence_of
from ratchet.analyst.nats_trail import Trail
from ratchet.analyst.runs import Runs
from ratchet.bus.kv import Entry
from ratchet.core.contract import LearningEvent
from ratchet.core.contract.http.analyst import AnalysisIn, AnalysisOut, DecisionIn, PatternOut, PatternsOut, TrailOut
from ratchet.core.contract.learning import AdaptationPlan, Pattern
from ratchet.core.errors import BadRequest, NotFound, WrongState
from ratchet.core.rules.access import Caller, KeyScope, RoleSet
from ratchet.core.rules.arms import ROLE
from ratchet.core.service.control_api import ControlApi

ERRORS: Mapping[int, str] = {
    422: "A parameter or the body is not what this document says.",
    503: "The broker or the warehouse is away.",
}
WRONG: Mapping[int, str] = {400: "The body is not what this document says."}
UNKNOWN: Mapping[int, str] = {404: "There is no such pattern."}
REFUSED: Mapping[int, str] = {
    **WRONG,
    **UNKNOWN,
    409: "Its state does not allow it, or another writer changed it meanwhile.",
}
ById = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="Only its steps.")]
PatternState = Annotated[str, Field(pattern="^(open|closed|dismissed)$", description="Only of this state.")]


class Routes(Protocol):
    """Routes of one subject."""

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        ...


@dataclass(frozen=True)
class PatternRoutes:
    """`/v1/patterns` and what is under it, and the trail."""

    store: PatternStore
    trail: Trail
    runs: Runs
    plans_of: Callable[[str, str], Awaitable[list[AdaptationPlan]]]
    """By role and pattern."""
    is_known: Callable[[str], Awaitable[bool]]
    """Whether a role has trajectories."""
    now: Callable[[], datetime]

    def add_to(self, api: ControlApi) -> None:
        """Serve them."""
        one = "/v1/patterns/{role}/{pattern_id}"
        api.route("GET", "/v1/patterns", self.list_patterns, scope=KeyScope.VIEW, errors=UNKNOWN_ROLE)
        api.route("GET", one, self.get_pattern, scope=KeyScope.VIEW, errors=UNKNOWN, reads=True)
        api.route("POST", f"{one}/dismiss", self.dismiss_pattern, scope=KeyScope.OPERATE, errors=REFUSED)
        api.route("POST", f"{one}/reopen", self.reopen_pattern, scope=KeyScope.OPERATE, errors=REFUSED)
        api.route("POST", "/v1/analyses", self.analyze, scope=KeyScope.OPERATE, errors={**WRONG, **UNKNOWN_ROLE})
        api.route("GET", "/v1/learning/{role}/events", self.list_events, scope=KeyScope.VIEW)

    async def list_patterns(
        self, roles: RoleSet, role: RoleName | None = None, state: PatternState | None = None
    ) -> PatternsOut:
        """Patterns, the dearest first."""
        entries = await self.store.every(lambda name: name in roles and role in (None, name))
        if role is not None and not entries:
            await require_known(role, self.is_known)
        patterns = [entry.value for entry in entries if state in (None, entry.value.state)]
        return PatternsOut(patterns=sorted(patterns, key=lambda each: (-each.reward_cost, -each.cost_usd)))

    async def get_pattern(self, role: RoleName, pattern_id: str) -> PatternOut:
        """A pattern, and the plans that were made because of it."""
        return await self._shown((await self._require(role, pattern_id)).value)

    async def dismiss_pattern(self, role: RoleName, pattern_id: str, body: DecisionIn, caller: Caller) -> PatternOut:
        """It is known, or no fault: it stays dismissed however often it is seen."""
        reason = sentence_of(body.reason or "")
        if not reason:
            raise BadRequest("to dismiss a pattern say why", param="reason")
        entry = await self._require(role, pattern_id)
        if entry.value.state == "dismissed":
            raise WrongState("the pattern is dismissed already")
        by, at = caller.actor(None), self.now()
        dismissed = replace(entry.value, state="dismissed", closed_at=at, closed_by=by, reason=reason)
        await self.store.put(dismissed, entry.revision)
        await self.trail.publish([dismissal(dismissed)])
        return await self._shown(dismissed)

    async def reopen_pattern(self, role: RoleName, pattern_id: str, body: DecisionIn, caller: Caller) -> PatternOut:
        """Undo a dismissal: it is open as it was seen last, and closes where it is gone."""
        entry = await self._require(role, pattern_id)
        if entry.value.state != "dismissed":
            raise WrongState(f"the pattern is {entry.value.state}, and not dismissed")
        again = replace(entry.value, state="open", closed_at=None, closed_by=None, reason=None)
        await self.store.put(again, entry.revision)
        reason = sentence_of(body.reason) or None if body.reason is not None else None
        await self.trail.publish([reopening(again, self.now(), caller.actor(None), reason)])
        return await self._shown(again)

    async def analyze(self, body: AnalysisIn) -> AnalysisOut:
        """Look at a role now: it takes up to a minute. Windows that were looked at test nothing anew."""
        if not ROLE.fullmatch(body.role):
            raise BadRequest("a role has a name of lower-case letters, digits, - and _", param="role")
        if not await self.store.every(lambda name: name == body.role):
            await require_known(body.role, self.is_known)
        return await self.runs.run(body.role, asked=True)

    async def list_events(
        self, role: RoleName, plan_id: ById | None = None, pattern_id: ById | None = None
    ) -> TrailOut:
        """What was looked at, seen, changed, and came of it, the oldest first. Steps of plans are their pattern's."""

        def is_asked_for(event: LearningEvent) -> bool:
            return plan_id in (None, event.plan_id) and pattern_id in (None, event.pattern_id)

        events = await self.trail.read(role, is_asked_for)
        return TrailOut(events=events)

    async def _require(self, role: str, pattern_id: str) -> Entry[Pattern]:
        known = len(pattern_id) == 32 and pattern_id.isalnum() and pattern_id.isascii()
        entry = await self.store.get(role, pattern_id) if known else None
        if entry is None:
            raise NotFound(f"the role {role} has no pattern {pattern_id[:80]!r}")
        return entry

    async def _shown(self, pattern: Pattern) -> PatternOut:
        return PatternOut(pattern=pattern, plans=await self.plans_of(pattern.role, pattern.pattern_id))


def http_app(routes: Sequence[Routes]) -> ControlApi:
    """The application with all routes."""
    description = (
        "What agents do wrong, what is changed because of it, and what comes of that. Every error is an ErrorOut."
    )
    api = ControlApi("Ratchet analyst", description, ERRORS)
    for each in routes:
        each.add_to(api)
    return api


def described_api() -> ControlApi:
    """The application for its document alone: nothing stands behind its routes."""
    unused: Any = None
    patterns = PatternRoutes(unused, unused, unused, unused, unused, unused)
    return http_app(
        [patterns, PlanRoutes(unused, unused, unused, unused, unused, unused), EpisodeRoutes(unused, unused)]
    )
