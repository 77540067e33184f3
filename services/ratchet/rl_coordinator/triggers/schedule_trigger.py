"""Starts trainings at the times of a schedule, each time once: also through restarts, and with several coordinators.

The last time that was seen to lies in a bucket. The job's id follows from the time: two coordinators that see it
at once ask for one job. Then the time is noted by compare-and-set. A changed schedule begins anew, with its next time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import datetime

from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.core.errors import Conflict
from ratchet.rl_coordinator.triggers.domain import SCHEDULE, SCHEDULED, Firing
from ratchet.rl_coordinator.triggers.firing import Firer
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for
from ratchet.rl_coordinator.triggers.schedules import corrected, is_due, newest_time, next_time


class ScheduleTrigger:
    """One tick fires for every role whose time has come; of times that were missed, the newest."""

    def __init__(
        self,
        *,
        recipes: Mapping[str, Recipe],
        roles: Callable[[], Collection[str]],
        seen: Bucket[datetime],
        firer: Firer,
        now: Callable[[], datetime],
    ) -> None:
        """`roles`: those that have data, for the recipe of any role. `seen`: the coordinator's bucket."""
        self._recipes = recipes
        self._roles = roles
        self._seen = seen
        self._firer = firer
        self._now = now

    def next_at(self, role: str) -> datetime | None:
        """The next time of a role's schedule; None without one."""
        recipe = recipe_for(role, self._recipes)
        return next_time(recipe.cron, self._now()) if recipe and recipe.cron else None

    async def tick(self) -> None:
        """Fire for every role that is due. Raises `Unavailable`."""
        named = {role for role in self._recipes if role != "*"}
        for role in sorted({*named, *self._roles()}):
            recipe = recipe_for(role, self._recipes)
            if recipe is not None and recipe.cron is not None:
                await self._tick_role(role, recipe, recipe.cron)

    async def _tick_role(self, role: str, recipe: Recipe, cron: str) -> None:
        key, now = f"fired.{role}.{named_id('schedule', cron)}", self._now()
        entry = await self._seen.get(key)
        seen = entry.value if entry else None
        note = corrected(cron, seen, now)
        if note is None and is_due(cron, seen, now):
            note = newest_time(cron, now)
            why = f"the schedule {cron!r} came to {note.isoformat()}"
            await self._firer.fire(
                role, Firing(SCHEDULE, SCHEDULED, why, named_id("trigger", SCHEDULE, role, note.isoformat())), recipe
            )
        if note is None:
            return
        with suppress(Conflict):  # another coordinator has noted it
            if entry is None:
                await self._seen.create(key, note)
            else:
                await self._seen.update(key, note, entry.revision)
