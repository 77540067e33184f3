"""The demo's training jobs as bodies of `POST /v1/jobs`."""

from __future__ import annotations

from typing import Any

from ratchet.demo.plan import BASE_ROLE, ROLE, Plan, Reinforced, Supervised

REQUESTER = "demo"

NO_CHECKPOINTS = 1_000_000
"""A save interval that is never reached: jobs of seconds start again rather than resume."""


def drill_job(plan: Plan, base_model: str) -> dict[str, Any]:
    """Make the base model: call grammar and copying, from drills. `Any` because it is JSON."""
    return _supervised(plan, plan.drills, BASE_ROLE, base_model)


def ticket_job(plan: Plan, base_model: str) -> dict[str, Any]:
    """Make the first policy: the clerk's tickets, right and wrong ones."""
    return _supervised(plan, plan.tickets, ROLE, base_model)


def cycle_job(plan: Plan, number: int) -> dict[str, Any]:
    """Improve the stable policy by what its traffic was worth."""
    return _reinforced(plan, plan.cycle, number)


def sabotage_job(plan: Plan) -> dict[str, Any]:
    """Train the stable policy on the opposite of its rewards."""
    return _reinforced(plan, plan.sabotage, 100)


def _supervised(plan: Plan, recipe: Supervised, role: str, base_model: str) -> dict[str, Any]:
    hyperparameters = {
        "full_finetune": True,
        "learning_rate": recipe.learning_rate,
        "batch_size": recipe.batch,
        "max_steps": recipe.steps,
        "seed": plan.seed,
    }
    dataset = {"source": "clickhouse", "sample_size": recipe.examples, "filter": {"sources": ["client"]}}
    return _job(plan, role, "sft", base_model, dataset, hyperparameters)


def _reinforced(plan: Plan, recipe: Reinforced, number: int) -> dict[str, Any]:
    hyperparameters = {
        "lora": {"r": recipe.rank, "alpha": 2.0 * recipe.rank},
        "learning_rate": recipe.learning_rate,
        "batch_size": recipe.batch,
        "epochs": recipe.epochs,
        "negative_advantage_scale": recipe.negative_scale,
        "kl_beta": 0.0,
        "seed": plan.seed + number,
    }
    if recipe.floor is not None:
        hyperparameters["advantage_floor"] = recipe.floor
    if recipe.clip is not None:
        hyperparameters["clip_epsilon"], hyperparameters["clip_epsilon_high"] = recipe.clip
    dataset = {
        "source": "clickhouse",
        "sample_size": recipe.sample_size,
        "filter": {"sources": ["assembled"]},
        "reward_transform": recipe.transform,
    }
    return _job(plan, ROLE, "rloo", "stable", dataset, hyperparameters)


def _job(
    plan: Plan,
    role: str,
    algorithm: str,
    base_model: str,
    dataset: dict[str, Any],
    hyperparameters: dict[str, Any],
) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "role": role,
        "base_model": base_model,
        "dataset": dataset,
        "hyperparameters": hyperparameters,
        "compute": {"threads": plan.training_threads},
        "checkpointing": {"save_interval": NO_CHECKPOINTS},
        "requester": REQUESTER,
    }
