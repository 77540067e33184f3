"""Starts training by itself: when enough new rewarded trajectories, or preferences, of a role are there.

They are counted in the stream and learned from in the warehouse, which is filled a moment later: what made a trigger
due is stored before it fires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.bus.projection import Projection
from ratchet.errors import Conflict, Rejected
from ratchet.rl_coordinator.jobs.intake import Intake
from ratchet.rl_coordinator.jobs.kv_jobs import KvJobs
from ratchet.rl_coordinator.triggers.domain import preferences_request, threshold_request
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for
from ratchet.stores.stored import IsStored

log = structlog.get_logger()

REQUESTS = {"rewarded": threshold_request, "preferences": preferences_request}
"""What is counted -> the rule that asks for training when there is enough of it."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When there is enough of one thing to train on, by role."""

    what: str
    """A key of `REQUESTS`."""
    counter: Projection[int]
    """By role, how many of it there ever were."""
    recipes: Mapping[str, Recipe]


class ThresholdTrigger:
    """One tick compares every role's counter with its recipe's threshold."""

    def __init__(
        self, store: KvJobs, intake: Intake, is_stored: IsStored, thresholds: Thresholds, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._intake = intake
        self._is_stored = is_stored
        self._counter = thresholds.counter
        self._recipes = thresholds.recipes
        self._what = thresholds.what
        self._now = now
        self._due: dict[str, int] = {}
        """By role that is due: its newest message of those that were counted when it was first seen to be."""

    async def tick(self) -> None:
        """Fire where it is due."""
        for role, counted in self._counter.states().items():
            recipe = recipe_for(role, self._recipes)
            if recipe is not None:
                await self._consider(role, counted, recipe)

    async def _consider(self, role: str, counted: int, recipe: Recipe) -> None:
        request = REQUESTS[self._what](
            role,
            recipe.config,
            jobs=self._store.all(),
            counted=counted,
            threshold=recipe.threshold,
            now=self._now(),
        )
        if request is None:
            self._due.pop(role, None)
            return
        due = self._due.setdefault(role, self._counter.sequence(role))
        if not await self._is_stored(self._counter.stream, due):
            return
        try:
            job, created = await self._intake.submit(replace(request, priority=recipe.priority))
        except (Conflict, Rejected) as error:
            log.warning("a trigger's training cannot start now", role=role, what=self._what, reason=str(error))
            return
        if created:
            log.info("threshold reached", role=role, what=self._what, counted=counted, job=job.training_job_id)
