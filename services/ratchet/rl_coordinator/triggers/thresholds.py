"""Starts training by itself: when enough new rewarded trajectories, or preferences, of a role are there.

They are counted in the stream and learned from in the warehouse, which is filled a moment later: a trigger fires once
the messages that made it due are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.bus.connection import Bus
from ratchet.bus.projection import Projection, project
from ratchet.core.rules.alerts import gap_alert
from ratchet.core.stores.stored_watch import IsStored
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.jobs.domain.jobs import Counted
from ratchet.rl_coordinator.triggers.domain import (
    PREFERRED,
    REWARDED,
    THRESHOLD,
    Firing,
    Measure,
    Standing,
    standing,
    why_due,
)
from ratchet.rl_coordinator.triggers.firing import Firer
from ratchet.rl_coordinator.triggers.recipes import Recipe, recipe_for


class Counters:
    """By role, how many trajectories were ever rewarded and how many preferences there ever were."""

    def __init__(self, bus: Bus) -> None:
        self.rewarded = _counting(bus, REWARDED)
        self.preferences = _counting(bus, PREFERRED)

    def counted(self, role: str) -> Counted:
        """Both counts of a role."""
        return Counted(self.rewarded.state(role) or 0, self.preferences.state(role) or 0)


@dataclass(frozen=True)
class ThresholdTrigger:
    """One tick compares every role's counter with its recipe's threshold."""

    measure: Measure
    counter: Projection[int]
    recipes: Mapping[str, Recipe]
    jobs: Jobs
    is_stored: IsStored
    firer: Firer
    _due: dict[str, int] = field(default_factory=dict[str, int], init=False)
    """By role that is due: its newest message of those that were counted when it was first seen to be."""

    def counts(self) -> Mapping[str, int]:
        """How many there ever were, by role."""
        return self.counter.states()

    def threshold(self, role: str) -> int | None:
        """So many new ones start a training; None: the role is trained by hand only."""
        recipe = recipe_for(role, self.recipes)
        return recipe.threshold if recipe else None

    def standing(self, role: str) -> Standing:
        """How far a role is from its next training."""
        counted = self.counts().get(role, 0)
        return standing(
            self.measure,
            role,
            jobs=self.jobs.store.jobs_of(role),
            counted=counted,
            threshold=self.threshold(role),
        )

    async def tick(self) -> None:
        """Fire for every role that is due. Raises `Unavailable`."""
        for role in self.counts():
            recipe, now = recipe_for(role, self.recipes), self.standing(role)
            if recipe is None or not now.is_enough:
                self._due.pop(role, None)
                continue
            counted = self.counter.sequence(role)
            # A stream that was restored from an older copy gives its sequences out again.
            newest = self._due[role] = min(self._due.get(role, counted), counted)
            if await self.is_stored(self.counter.stream, newest):
                why = why_due(self.measure, now, recipe.threshold, None)
                await self.firer.fire(role, Firing(self.measure.name, THRESHOLD, why), recipe)


def _counting(bus: Bus, measure: Measure) -> Projection[int]:
    return project(
        bus,
        measure.name,
        kind=int,
        key_of=lambda received: measure.role_of(received.message),
        step=lambda count, _: (count or 0) + 1,
        on_gap=gap_alert,
    )
