"""What a trigger trains: a training configuration per role, read and checked at start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ratchet.contract.training import TrainingConfig
from ratchet.errors import ConfigError
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, config_problems
from ratchet.rl_coordinator.jobs.domain.schedule import PRIORITIES

ANY_ROLE = "*"


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a role is trained when nobody asks for anything in particular."""

    config: TrainingConfig
    threshold: int
    """New rewarded trajectories that start a training."""
    priority: str = "normal"


def read_recipes(document: Mapping[str, Mapping[str, Any]], threshold: int, abilities: Abilities) -> dict[str, Recipe]:
    """Recipes by role from parsed JSON; `threshold` where one names none. Raises `ConfigError`."""
    return {role: _read(role, {"threshold": threshold, **entry}, abilities) for role, entry in document.items()}


def recipe_for(role: str, recipes: Mapping[str, Recipe]) -> Recipe | None:
    """The role's own recipe, else the one for any role; None means that the role is trained by hand only."""
    return recipes.get(role, recipes.get(ANY_ROLE))


def _read(role: str, entry: Mapping[str, Any], abilities: Abilities) -> Recipe:
    try:
        recipe = msgspec.convert(entry, Recipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"training recipe of role {role}: {error}") from error
    found = config_problems(recipe.config, abilities)
    if recipe.priority not in PRIORITIES:
        found.append(f"priority must be one of {', '.join(PRIORITIES)}")
    if recipe.threshold < 1:
        found.append("threshold must be at least 1")
    if found:
        raise ConfigError(f"training recipe of role {role}: {'; '.join(found)}")
    return recipe
