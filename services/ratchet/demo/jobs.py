"""The demo's training jobs as bodies of `POST /v1/jobs`."""

from __future__ import annotations

from typing import Any

from ratchet.demo.plan import ALPHA, BAD_DOMAIN, BASE_ROLE, DOMAIN, RANK, ROLE, Plan, Supervised

REQUESTER = "demo"

NO_CHECKPOINTS = 1_000_000
"""A save interval that is never reached: jobs of seconds start again rather than resume."""


def drill_job(plan: Plan, base_model: str) -> dict[str, Any]:
    """Make the base model: call grammar and copying, from drills. `Any` because it is JSON."""
    return _supervised(plan, plan.drills, BASE_ROLE, base_model, DOMAIN, {"full_finetune": True})


def ticket_job(plan: Plan, base_model: str) -> dict[str, Any]:
    """Make the first policy: imitate the clerk's tickets, right and wrong ones."""
    return _supervised(plan, plan.tickets, ROLE, base_model, DOMAIN, {"full_finetune": True})


def bad_job(plan: Plan) -> dict[str, Any]:
    """Make the bad policy: the stable one imitates a clerk who mostly does the opposite of the rules."""
    return _supervised(plan, plan.bad, ROLE, "stable", BAD_DOMAIN, {})


def cycle_job(plan: Plan, number: int) -> dict[str, Any]:
    """Improve the stable policy by what its traffic was worth."""
    hyperparameters = {
        "lora": {"r": RANK, "alpha": ALPHA},
        "learning_rate": plan.cycle.learning_rate,
        "batch_size": plan.cycle.batch,
        "epochs": plan.cycle.epochs,
        "kl_beta": 0.0,
        "seed": plan.seed + number,
    }
    dataset = {
        "source": "clickhouse",
        "sample_size": plan.cycle.sample_size,
        "filter": {"sources": ["assembled"]},
    }
    return _job(plan, ROLE, "rloo", "stable", dataset, hyperparameters)


def _supervised(
    plan: Plan, recipe: Supervised, role: str, base_model: str, domain: str, what_learns: dict[str, Any]
) -> dict[str, Any]:
    hyperparameters = {
        **what_learns,
        "learning_rate": recipe.learning_rate,
        "batch_size": recipe.batch,
        "max_steps": recipe.steps,
        "seed": plan.seed,
    }
    chosen = {"sources": ["client"], "task_domains": [domain]}
    dataset = {"source": "clickhouse", "sample_size": recipe.examples, "filter": chosen}
    return _job(plan, role, "sft", base_model, dataset, hyperparameters)


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
