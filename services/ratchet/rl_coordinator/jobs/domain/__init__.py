"""The pure rules of jobs: their states, what can run, who is next, what a failure changes, what time does to them."""

from ratchet.rl_coordinator.jobs.domain.jobs import (
    ACTIVE,
    Counted,
    learns_from_trajectories,
    queue_wait_s,
    usage_of,
)
from ratchet.rl_coordinator.jobs.domain.planning import AUTO, Shape
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, config_problems, serving_problems
from ratchet.rl_coordinator.jobs.domain.retries import DEFAULT_RETRIES, RetryRule
from ratchet.rl_coordinator.jobs.domain.schedule import PRIORITIES

__all__ = [
    "ACTIVE",
    "AUTO",
    "DEFAULT_RETRIES",
    "PRIORITIES",
    "Abilities",
    "Counted",
    "RetryRule",
    "Shape",
    "config_problems",
    "learns_from_trajectories",
    "queue_wait_s",
    "serving_problems",
    "usage_of",
]
