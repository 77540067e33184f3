"""Algorithms by name. A name maps to its module, so that a job imports only what it needs."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ratchet.errors import Rejected
from ratchet.trainer_worker.training.algorithms.base import Algorithm

ALGORITHMS: dict[str, str] = {
    "sft": "ratchet.trainer_worker.training.algorithms.sft",
    "rloo": "ratchet.trainer_worker.training.algorithms.rloo",
    "grpo": "ratchet.trainer_worker.training.algorithms.grpo",
    "reinforce": "ratchet.trainer_worker.training.algorithms.reinforce",
    "ppo": "ratchet.trainer_worker.training.algorithms.ppo",
    "dpo": "ratchet.trainer_worker.training.algorithms.dpo",
    "kto": "ratchet.trainer_worker.training.algorithms.kto",
}


def load_algorithm(name: str) -> Algorithm:
    """The algorithm's `train` function. Raises `Rejected` for a name that this worker does not know."""
    if name not in ALGORITHMS:
        raise Rejected(f"unknown algorithm {name!r}; this worker knows {', '.join(ALGORITHMS)}")
    return cast("Algorithm", import_module(ALGORITHMS[name]).train)
