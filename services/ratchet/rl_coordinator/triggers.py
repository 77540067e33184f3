"""Starts training by itself: when enough new rewarded trajectories, or preferences, of a role are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import structlog
from msgspec.structs import replace

from ratchet.kernel.errors import Conflict, Rejected
from ratchet.rl_coordinator.domain.recipes import Recipe, recipe_for
from ratchet.rl_coordinator.domain.triggers import preferences_request, threshold_request
from ratchet.rl_coordinator.intake import Intake
from ratchet.rl_coordinator.kv_jobs import KvJobs

log = structlog.get_logger()

REQUESTS = {"rewarded": threshold_request, "preferences": preferences_request}
"""What is counted -> the rule that asks for training when there is enough of it."""


class ThresholdTrigger:
    """One tick compares every role's counter with its recipe's threshold."""

    def __init__(
        self,
        store: KvJobs,
        intake: Intake,
        counts: Callable[[], Mapping[str, int]],
        recipes: Mapping[str, Recipe],
        what: str,
        now: Callable[[], datetime],
    ) -> None:
        """`counts`: by role, how many of `what` (a key of `REQUESTS`) there ever were."""
        self._store = store
        self._intake = intake
        self._counts = counts
        self._recipes = recipes
        self._what = what
        self._now = now

    async def tick(self) -> None:
        """Fire where it is due."""
        for role, counted in self._counts().items():
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
            return
        try:
            job, created = await self._intake.submit(replace(request, priority=recipe.priority))
        except (Conflict, Rejected) as error:
            log.warning("a trigger's training cannot start now", role=role, what=self._what, reason=str(error))
            return
        if created:
            log.info("threshold reached", role=role, what=self._what, counted=counted, job=job.training_job_id)
