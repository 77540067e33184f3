"""Training that starts by itself.

    RL_REWARDS, RL_FEEDBACK ──> Counters (projections) ──> ThresholdTrigger ────┐
                          RL_STORED ──> StoredWatch ──────────┘                 │
    KV coordinator: times seen to ─────────────────────> ScheduleTrigger ───────┼─> Firer ──> Intake
    ClickHouse: rewards of the stable policy ──────────> DegradationTrigger ────┘

`build_triggers` puts it together; `Triggers` is what the other subjects ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import structlog
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.http.status import FiredOut, TriggerOut
from ratchet.core.contract.state import Job
from ratchet.core.errors import RatchetError
from ratchet.core.service.runtime import Component, Periodic
from ratchet.core.stores.history import History
from ratchet.core.stores.stored_watch import StoredWatch, stored_check
from ratchet.core.stores.warehouse import Warehouse
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.settings import Settings, Timing
from ratchet.rl_coordinator.triggers.clickhouse_scores import Scores
from ratchet.rl_coordinator.triggers.degradation_trigger import DegradationTrigger
from ratchet.rl_coordinator.triggers.domain import (
    DEGRADATION,
    PREFERRED,
    REWARDED,
    SCHEDULE,
    last_note,
    under_way,
    why_due,
)
from ratchet.rl_coordinator.triggers.firing import Claim, Firer
from ratchet.rl_coordinator.triggers.recipes import Recipes, load_recipes
from ratchet.rl_coordinator.triggers.schedule_trigger import ScheduleTrigger
from ratchet.rl_coordinator.triggers.thresholds import Counters, ThresholdTrigger

__all__ = ["Counters", "Recipes", "Triggers", "build_triggers", "load_recipes"]

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Triggers:
    """All triggers; `components` run for as long as the service does."""

    rewarded: ThresholdTrigger
    preferences: ThresholdTrigger
    schedule: ScheduleTrigger
    degradation: DegradationTrigger
    firer: Firer
    components: Sequence[Component]

    def standings(self, role: str, jobs: Sequence[Job]) -> list[TriggerOut]:
        """Where each trigger of a role stands; those that it has no recipe for are left out."""
        shown: list[TriggerOut] = []
        for trigger, kind in ((self.rewarded, REWARDED.name), (self.preferences, PREFERRED.name)):
            threshold, now = trigger.threshold(role), trigger.standing(role)
            if threshold is not None:
                shown.append(TriggerOut(kind=kind, progress=now.new, target=threshold, is_due=now.is_enough))
        next_at = self.schedule.next_at(role)
        if next_at is not None:
            shown.append(TriggerOut(kind=SCHEDULE, next_at=next_at))
        looked, rests_until = self.degradation.looked(role), self.degradation.rests_until(role)
        if looked is not None:
            words = f"{looked.policy}: {looked.comparison.in_words}"
            shown.append(TriggerOut(kind=DEGRADATION, state=words, rests_until=rests_until))
        return [self._with_last(trigger, role, jobs) for trigger in shown]

    def why_dpo(self, role: str, jobs: Sequence[Job]) -> str:
        """Why the role's preferences would start a training now, or why not."""
        trigger = self.preferences
        waits_for, refused = under_way(role, jobs), self.firer.refused(role, PREFERRED.name)
        why = why_due(PREFERRED, trigger.standing(role), trigger.threshold(role), waits_for)
        return f"{why}; it cannot start: {refused.why}" if refused else why

    def _with_last(self, shown: TriggerOut, role: str, jobs: Sequence[Job]) -> TriggerOut:
        """A trigger with what came of it when it fired last."""
        last, refused = last_note(shown.kind, role, jobs), self.firer.refused(role, shown.kind)
        fired = FiredOut(at=last[0].at, why=last[0].why, job=last[1].training_job_id) if last else None
        return replace(shown, last=fired, refused=refused.why if refused else None)


def build_triggers(  # noqa: PLR0913 - assembles the subject of all that it is given
    settings: Settings,
    recipes: Recipes,
    timing: Timing,
    *,
    bus: Bus,
    warehouse: Warehouse,
    counters: Counters,
    jobs: Jobs,
) -> Triggers:
    """Triggers on open connections. While training is disabled they count and do not fire."""
    watch = StoredWatch(bus, (counters.rewarded.stream, counters.preferences.stream))
    is_stored = stored_check(watch, History(warehouse).outcomes)
    firer = Firer(jobs, Bucket(bus, "coordinator", Claim), bus.now)
    trigger = partial(ThresholdTrigger, jobs=jobs, is_stored=is_stored, firer=firer)
    rewarded = trigger(measure=REWARDED, counter=counters.rewarded, recipes=recipes.rewarded)
    preferences = trigger(measure=PREFERRED, counter=counters.preferences, recipes=recipes.preferences)
    schedule = ScheduleTrigger(
        recipes=recipes.rewarded,
        roles=rewarded.counts,
        seen=Bucket(bus, "coordinator", datetime),
        firer=firer,
        now=bus.now,
    )
    degradation = DegradationTrigger(
        recipes=recipes.rewarded, policies=jobs.policies, scores=Scores(warehouse), jobs=jobs, firer=firer, now=bus.now
    )

    async def tick() -> None:
        # One after the other: of two that fire at once, the second finds the job of the first.
        for kind in (rewarded, preferences, schedule, degradation):
            try:
                await kind.tick()
            except RatchetError as error:
                log.warning("a trigger cannot be looked after now", trigger=type(kind).__name__, reason=str(error))

    ticks = [Periodic(timing.trigger_tick_s, tick, "triggers")] if settings.training_enabled else []
    return Triggers(
        rewarded=rewarded,
        preferences=preferences,
        schedule=schedule,
        degradation=degradation,
        firer=firer,
        components=[watch, *ticks],
    )
