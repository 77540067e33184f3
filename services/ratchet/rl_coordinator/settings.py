"""Settings of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.rules.algorithms import ALGORITHMS, PROMPTS
from ratchet.core.service.settings import OptionalHttpAddress, Port, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_COORDINATOR_*`; tables are JSON objects."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_COORDINATOR_", frozen=True, populate_by_name=True)

    port: Port = 8081
    """Port of the HTTP API; 0 picks a free one."""
    training_enabled: bool = True
    """When false, the coordinator refuses requests with a reason and trains nothing."""
    algorithms: frozenset[str] = Field(default_factory=lambda: frozenset(ALGORITHMS))
    """Algorithms that this installation's workers can run."""
    slots: Mapping[str, int] = {"default": 1, PROMPTS: 1}
    """By pool: how many jobs may run at a time. Jobs that ask for a GPU use the pool `gpu` where there is one, searches
    for bundles the pool `prompts`."""
    gateway_url: OptionalHttpAddress = Field(
        default=None,
        validation_alias=AliasChoices("RATCHET_COORDINATOR_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """The gateway, which is asked for the models and prices of a search before that is taken. Unset: its worker is the
    first to ask."""
    lease_s: float = 30.0
    """A worker that is silent for longer loses its job to another one."""
    threshold: int = 5000
    """New rewarded trajectories of a role that start its training, where its recipe names no other number."""
    recipes: Mapping[str, Mapping[str, Any]] = {}
    """What a trigger trains, by role (`*` for all others): {"config": training_config, "threshold"?, "priority"?}."""
    preference_recipes: Mapping[str, Mapping[str, Any]] = {}
    """What new preferences train, by role, in the form of `recipes`; the threshold is 500 where none is named, and the
    algorithm one that learns from pairs. Empty: new preferences start no training."""
    sweep: Literal["on", "dry_run", "off"] = "on"
    """Whether objects that nothing refers to leave the object store: `dry_run` only logs what would."""
    artifact_retention_days: float = Field(default=90, ge=1)
    """Snapshots, checkpoints and policies that no job, policy or route refers to are kept this long. The last
    checkpoint of a job is kept for as long as the job."""
    history_limit: int = 200_000
    """Most recent trajectories of a role that a snapshot is selected from, and its baselines are computed over. A
    `sample_size` above it is refused. A worker holds its whole snapshot in memory."""
    history_days: float = Field(default=90, gt=0)
    """A snapshot takes no trajectory that was stored longer ago: its cost does not grow with history."""
    minimum_rows: int = 8
    """The coordinator refuses a job that has fewer trajectories with rewards (rloo, grpo, reinforce, ppo), preference
    pairs, or answers with thumbs, of which it needs both kinds. A low floor: with less than a batch, an epoch is one
    train step over all rows."""
    minimum_pairs: int = Field(default=500, ge=0)
    """The same for preference pairs, of which fewer show little; `min_rows` of a request lowers it, down to
    `minimum_rows`."""
    human_share: float = Field(default=0.8, ge=0, le=1)
    """The least share of pairs that people gave, where a request names no `min_human_share`; of the others fewer are
    taken."""


def verify(settings: Settings, _: Mapping[str, str]) -> None:
    """What is known to be wrong before a start. Raises `ConfigError` for recipes that could never run."""
    from ratchet.rl_coordinator.triggers import load_recipes  # noqa: PLC0415 - which needs these settings itself

    load_recipes(settings)


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the coordinator waits; tests wait for less."""

    claim_s: float = 120.0
    """A dispatch that no worker takes within this time gives its slot back and is made again; a worker that takes it
    later is fenced off."""
    tick_s: float = 0.5
    """How often jobs are brought up to date and free slots filled."""
    trigger_tick_s: float = 5.0
    """How often the counters are compared with the thresholds."""
    erasure_tick_s: float = 5.0
    """How often erasures are looked for."""


TIMING = Timing()
