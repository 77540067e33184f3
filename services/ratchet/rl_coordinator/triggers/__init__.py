"""Training that starts by itself.

    RL_REWARDS, RL_FEEDBACK ──> Counters (projections) ──> ThresholdTrigger ──> Intake
                          RL_STORED ──> StoredWatch ──────────┘

`build_triggers` puts it together; `Triggers` is what the other subjects ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ratchet.bus.connection import Bus
from ratchet.rl_coordinator.jobs import Jobs
from ratchet.rl_coordinator.settings import Settings
from ratchet.rl_coordinator.triggers.domain import PREFERRED, REWARDED
from ratchet.rl_coordinator.triggers.recipes import Recipes, load_recipes
from ratchet.rl_coordinator.triggers.thresholds import Counters, ThresholdTrigger
from ratchet.service.runtime import Component, Periodic
from ratchet.stores.history import History
from ratchet.stores.stored_watch import StoredWatch, stored_check
from ratchet.stores.warehouse import Warehouse

__all__ = ["Counters", "Recipes", "Triggers", "build_triggers", "load_recipes"]


@dataclass(frozen=True, kw_only=True)
class Triggers:
    """The two triggers; `components` run for as long as the service does."""

    rewarded: ThresholdTrigger
    preferences: ThresholdTrigger
    components: Sequence[Component]


def build_triggers(
    settings: Settings, recipes: Recipes, *, bus: Bus, warehouse: Warehouse, counters: Counters, jobs: Jobs
) -> Triggers:
    """Triggers on open connections. While training is disabled they count and do not fire."""
    watch = StoredWatch(bus, (counters.rewarded.stream, counters.preferences.stream))
    is_stored = stored_check(watch, History(warehouse))
    trigger = partial(ThresholdTrigger, jobs=jobs, is_stored=is_stored, now=bus.now)
    rewarded = trigger(measure=REWARDED, counter=counters.rewarded, recipes=recipes.rewarded)
    preferences = trigger(measure=PREFERRED, counter=counters.preferences, recipes=recipes.preferences)
    firing = (rewarded, preferences) if settings.training_enabled else ()
    ticks = [Periodic(settings.trigger_tick_s, one.tick, "triggers") for one in firing]
    return Triggers(rewarded=rewarded, preferences=preferences, components=[watch, *ticks])
