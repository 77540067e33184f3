"""Settings of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.service.setting_types import Port
from ratchet.core.service.settings import ServiceSettings
from ratchet.rl_coordinator.jobs.domain import DEFAULT_RETRIES, RetryRule


class Settings(ServiceSettings):
    """Read from `RATCHET_COORDINATOR_*`; tables are JSON objects."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_COORDINATOR_", frozen=True)

    port: Port = 8081
    """Port of the HTTP API; 0 picks a free one."""
    training_enabled: bool = True
    """When false, the coordinator refuses requests with a reason and trains nothing."""
    algorithms: frozenset[str] = Field(default_factory=lambda: frozenset(ALGORITHMS))
    """Algorithms that this installation's workers can run."""
    slots: Mapping[str, int] = {"default": 1}
    """By pool: how many jobs may run at a time. Jobs that ask for a GPU use the pool `gpu` where there is one."""
    ageing_s: float = 1800.0
    """Each priority below `urgent` puts a job off by this long; no job that comes later still overtakes it."""
    lease_s: float = 30.0
    """A worker that is silent for longer loses its job to another one."""
    claim_s: float = Field(default=120.0, gt=0)
    """A dispatch that no worker takes within this time gives its slot back and is made again; a worker that takes it
    later is fenced off."""
    max_attempts: int = 5
    """Attempts of workers after which a job whose workers keep vanishing fails."""
    retries: Mapping[str, RetryRule] = DEFAULT_RETRIES
    """By error code: attempts in all, pause, what is eased, whether to resume. Codes that are absent are final."""
    job_retention_s: float = Field(default=90 * 86_400, gt=0)
    """Ended jobs are kept this long, and the last one of each role and algorithm; the history in ClickHouse has all."""
    exports: int = Field(default=4, ge=1)
    """Roles whose data is exported at a time: a slow export delays its own role alone. Each holds the catalogue of its
    role in memory, about 200 MB at the limit of the history."""
    tick_s: float = 0.5
    """How often the coordinator brings jobs up to date and fills free slots."""
    threshold: int = 5000
    """New rewarded trajectories of a role that start its training, where its recipe names no other number."""
    trigger_tick_s: float = 5.0
    """How often the coordinator compares the counters with the thresholds."""
    recipes: Mapping[str, Mapping[str, Any]] = {}
    """What a trigger trains, by role (`*` for all others): {"config": training_config, "threshold"?, "priority"?}."""
    preference_threshold: int = 500
    """New preferences of a role that start its training, where its entry in `preference_recipes` names no number."""
    preference_recipes: Mapping[str, Mapping[str, Any]] = {}
    """What new preferences train, by role, in the form of `recipes`; the algorithm is one that learns from pairs.
    Empty: new preferences start no training."""
    recipes_file: Path | None = None
    """JSON file with more recipes; those in `recipes` come first."""
    sweep: Literal["on", "dry_run", "off"] = "on"
    """Whether objects that nothing refers to leave the object store: `dry_run` only logs what would."""
    sweep_every_s: float = Field(default=86_400, gt=0)
    """Time between two sweeps, of all coordinators together."""
    sweep_grace_hours: float = Field(default=48, ge=24)
    """What is younger is never swept: longer than anything takes from its first file to what names it."""
    artifact_retention_days: float = Field(default=90, ge=1)
    """Snapshots, checkpoints and policies that no job, policy or route refers to are kept this long. The last
    checkpoint of a job is kept for as long as the job (`job_retention_s`)."""
    sweep_trash_days: float = Field(default=7, ge=1)
    """What a sweep set aside can be read for this long, which takes it back; then it is removed."""
    history_limit: int = 200_000
    """Most recent trajectories of a role that a snapshot is selected from, and its baselines are computed over. A
    `sample_size` above it is refused. A worker holds its whole snapshot in memory."""
    history_days: float = Field(default=90, gt=0)
    """A snapshot takes no trajectory that was stored longer ago: its cost does not grow with history."""
    minimum_trajectories: int = 8
    """The coordinator refuses a job that learns from rewards (rloo, grpo, reinforce, ppo) and has fewer: it compares
    tries with each other. A low floor: with less than a batch, an epoch is one train step over all rows."""
    minimum_pairs: int = 8
    """The coordinator refuses a job that learns from preference pairs and has fewer. A low floor: below some 500 pairs,
    DPO shows little."""
    pairs_per_group: int = Field(default=4, ge=1)
    """Most pairs of one task in a snapshot, the newest; pairs without a group key, as people give, are not bounded."""
    minimum_labels: int = 8
    """The same for a job that learns from thumbs; it needs both kinds of them."""
    chunk: int = 250
    """Trajectories that the coordinator reads from the warehouse at a time while it writes a snapshot."""


def verify(settings: Settings, _: Mapping[str, str]) -> None:
    """What is known to be wrong before a start. Raises `ConfigError` for recipes that could never run."""
    from ratchet.rl_coordinator.triggers import load_recipes  # noqa: PLC0415 - which needs these settings itself

    load_recipes(settings)
