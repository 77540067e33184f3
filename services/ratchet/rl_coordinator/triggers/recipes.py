"""What a trigger trains: a training configuration per role, read and checked at start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from ratchet.core.contract.snapshot import PAIRS
from ratchet.core.contract.training import HOURS, Evaluation, StartHours, TrainingConfig
from ratchet.core.errors import ConfigError
from ratchet.core.rules.algorithms import dataset_format
from ratchet.core.rules.engines import ANY_ROLE
from ratchet.rl_coordinator.jobs import abilities
from ratchet.rl_coordinator.jobs.domain.requests import (
    Abilities,
    config_problems,
    judging_problems,
    serving_problems,
)
from ratchet.rl_coordinator.jobs.domain.schedule import PRIORITIES
from ratchet.rl_coordinator.settings import Settings
from ratchet.rl_coordinator.triggers.domain import schedule_problem

NEW_PREFERENCES = 500
"""They start a training where a recipe names no other number: from fewer pairs DPO learns little."""


class Degradation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the stable policy counts as worse than it was."""

    drop: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.1
    """So much lower is the mean reward of the window than the policy's own before; and by more than chance."""
    window_s: Annotated[float, msgspec.Meta(gt=0)] = 86_400
    minimum: Annotated[int, msgspec.Meta(ge=2)] = 100
    """Tasks with a reward that the window, and the time before it, need each."""
    cooldown_s: Annotated[float, msgspec.Meta(gt=0)] = 21_600
    """Time after a training that degradation started, in which it starts no other."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a trigger trains a role."""

    config: TrainingConfig
    threshold: int
    """New rewarded trajectories, or preferences, that start a training."""
    priority: str = "normal"
    start_hours: StartHours | None = None
    evaluation: Evaluation | None = None
    """See `TrainingRequest` for both."""
    cron: str | None = None
    """Times at which a training starts too, in cron's five fields, in UTC."""
    degradation: Degradation | None = None
    """A training starts too when the stable policy becomes worse; `{}` for the defaults, None: never."""


@dataclass(frozen=True, slots=True)
class Recipes:
    """What triggers train, by role."""

    rewarded: Mapping[str, Recipe]
    """When enough trajectories were rewarded."""
    preferences: Mapping[str, Recipe]
    """When there are enough preferences."""


def load_recipes(settings: Settings) -> Recipes:
    """The recipes of the settings. Raises `ConfigError` if one of them could never run."""
    able = abilities(settings)
    from_pairs = frozenset(name for name in settings.algorithms if dataset_format(name) == PAIRS)
    pairs_only = replace(able, algorithms=from_pairs)
    return Recipes(
        rewarded=read_recipes(settings.recipes, settings.threshold, able),
        preferences=read_recipes(settings.preference_recipes, NEW_PREFERENCES, pairs_only),
    )


def read_recipes(document: Mapping[str, Mapping[str, Any]], threshold: int, able: Abilities) -> dict[str, Recipe]:
    """Recipes by role from parsed JSON; `threshold` where one names none. Raises `ConfigError`."""
    recipes: dict[str, Recipe] = {}
    for role, entry in document.items():
        try:
            recipe = msgspec.convert({"threshold": threshold, **entry}, Recipe)
        except msgspec.ValidationError as error:
            raise ConfigError(f"training recipe of role {role}: {error}") from error
        problems = [*config_problems(recipe.config, able), *serving_problems(role, recipe.config, able)]
        problems += judging_problems(recipe.config.algorithm, recipe.evaluation)
        if recipe.priority not in PRIORITIES:
            problems.append(f"priority must be one of {', '.join(PRIORITIES)}")
        if recipe.start_hours is not None and not re.fullmatch(HOURS, recipe.start_hours):
            problems.append(f"start_hours {recipe.start_hours!r} must be two hours of the day in UTC, such as 22-6")
        if recipe.cron is not None and (wrong := schedule_problem(recipe.cron)) is not None:
            problems.append(wrong)
        if recipe.threshold < 1:
            problems.append("threshold must be at least 1")
        if problems:
            raise ConfigError(f"training recipe of role {role}: {'; '.join(problems)}")
        recipes[role] = recipe
    return recipes


def recipe_for(role: str, recipes: Mapping[str, Recipe]) -> Recipe | None:
    """The role's own recipe, else the one for any role; None means that the role is trained by hand only."""
    return recipes.get(role, recipes.get(ANY_ROLE))
