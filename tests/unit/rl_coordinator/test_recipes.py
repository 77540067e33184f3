"""Recipes are checked when the coordinator starts, not when a trigger fires at night."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.training import Dataset, Hyperparameters
from ratchet.core.errors import ConfigError
from ratchet.rl_coordinator.jobs.domain.requests import Abilities
from ratchet.rl_coordinator.triggers.recipes import read_recipes, recipe_for
from tests.support.training import AMOUNTS, config

OFFERED = Abilities(training_enabled=True, algorithms=frozenset({"sft", "rloo"}), amounts=AMOUNTS)
FEW = Dataset(source="clickhouse", sample_size=7)


def entry(**changes: Any) -> dict[str, Any]:
    return {"config": msgspec.to_builtins(config()), **changes}


def test_a_recipe_names_its_threshold_or_takes_the_usual_one() -> None:
    recipes = read_recipes({"support": entry(), "sales": entry(threshold=7, priority="low")}, 5000, OFFERED)
    assert (recipes["support"].threshold, recipes["support"].priority) == (5000, "normal")
    assert (recipes["sales"].threshold, recipes["sales"].priority) == (7, "low")
    assert recipes["support"].config == config()


def test_role_without_a_recipe_is_trained_by_hand() -> None:
    own = read_recipes({"support": entry(threshold=1)}, 5000, OFFERED)
    assert recipe_for("sales", own) is None
    both = read_recipes({"support": entry(threshold=1), "*": entry(threshold=2)}, 5000, OFFERED)
    assert [recipe_for(role, both).threshold for role in ("support", "sales")] == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (entry(treshold=7), "unknown field `treshold`"),
        ({}, "missing required field `config`"),
        (entry(threshold=0), "threshold must be at least 1"),
        (entry(cron="0 3 * *"), "cron '0 3 * *' does not have five fields"),
        (entry(cron="0 0 31 2 *"), "cron '0 0 31 2 *'"),
        (entry(cron="61 * * * *"), "cron '61 * * * *'"),
        (entry(degradation={"drop": 0}), "degradation.drop"),
        (entry(degradation={"drop": 0.2, "windows": 1}), "unknown field `windows`"),
        (entry(priority="now"), "priority must be one of"),
        (entry(start_hours="22 to 6"), "start_hours"),
        (entry(evaluation={"metrics": ["reward"]}), "evaluation.metrics"),
        (entry(config=msgspec.to_builtins(config("dpo"))), "'dpo' is not offered"),
        (
            entry(config=msgspec.to_builtins(config(dataset=FEW))),
            "rloo needs at least 8",
        ),
        (
            entry(config=msgspec.to_builtins(config(hyperparameters=Hyperparameters(full_finetune=True)))),
            "full_finetune makes a whole model, and the engine of support (vllm) holds adapters",
        ),
    ],
)
def test_a_recipe_that_could_never_be_run_stops_the_start(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match="training recipe of role support") as raised:
        read_recipes({"support": wrong}, 5000, replace(OFFERED, engines={"*": "vllm"}))
    assert reason in str(raised.value)
