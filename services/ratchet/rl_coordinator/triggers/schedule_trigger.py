"""Starts trainings at the times of a schedule, each time once: also through restarts, and with several coordinators.

The last time that was seen to lies in a bucket. The job's id follows from the time: two coordinators that see it
at once ask for one job. Then the time is noted by compare-and-set. A changed schedule begins anew, with its next time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.core.errors import Conflict
from ratchet.rl_coordinator.triggers.domain import (
    SCHEDULE,
    SCHEDULED,
    Firing,
    corrected,
    is_due,
    newest_time,
    next_time,
)
from ratchet.rl_coordinator.triggers.firing import Firer
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for


@dataclass(frozen=True)
class ScheduleTrigger:
    """One tick fires for every role whose time has come; of times that were missed, the newest."""

    recipes: Mapping[str, Recipe]
    roles: Callable[[], Collection[str]]
    """Those that have data, for the recipe of any role."""
    seen: Bucket[datetime]
    """The coordinator's bucket."""
    firer: Firer
    now: Callable[[], datetime]

    def next_at(self, role: str) -> datetime | None:
        """The next time of a role's schedule; None without one."""
        recipe = recipe_for(role, self.recipes)
        return next_time(recipe.cron, self.now()) if recipe and recipe.cron else None

    async def tick(self) -> None:
        """Fire for every role that is due. Raises `Unavailable`."""
        named = {role for role in self.recipes if role != "*"}
        for role in sorted({*named, *self.roles()}):
            recipe = recipe_for(role, self.recipes)
            if recipe is not None and recipe.cron is not None:
                await self._tick_role(role, recipe, recipe.cron)

    async def _tick_role(self, role: str, recipe: Recipe, cron: str) -> None:
        key, now = f"fired.{role}.{named_id('schedule', cron)}", self.now()
        entry = await self.seen.get(key)
        seen = entry.value if entry else None
        note = corrected(cron, seen, now)
        if note is None and is_due(cron, seen, now):
            note = newest_time(cron, now)
            why = f"the schedule {cron!r} came to {note.isoformat()}"
            await self.firer.fire(
                role, Firing(SCHEDULE, SCHEDULED, why, named_id("trigger", SCHEDULE, role, note.isoformat())), recipe
            )
        if note is None:
            return
        with suppress(Conflict):  # another coordinator has noted it
            if entry is None:
                await self.seen.create(key, note)
            else:
                await self.seen.update(key, note, entry.revision)
