"""Settings of the collector."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from ratchet.kernel.settings import KernelSettings


class Settings(BaseSettings):
    """Read from `RATCHET_COLLECTOR_*`."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_COLLECTOR_", frozen=True)

    kernel: KernelSettings = Field(default_factory=KernelSettings)
    """What all services share."""
    batch: int = 500
    """Most messages in one insert."""
    linger_s: float = 0.1
    """How long an insert waits for more messages: ClickHouse likes few, large parts."""
    ack_wait_s: float = 30.0
    """The broker redelivers after this long without a sign of life."""
    assembly_patience: int = 30
    """After this many deliveries a trajectory is assembled from the turns that did arrive."""
    audit_interval_s: float = 5.0
    """How often the ledger is compared with what the broker says was settled."""
    trim_above: float = 0.8
    """A stream filled beyond this share of its bound is trimmed of what every consumer has settled."""
    idle_s: float = 600.0
    """A trajectory without an end is assembled after this long without a further turn."""
    idle_interval_s: float = 30.0
    """How often idle trajectories are looked for."""
    idle_lookback_s: float = 7 * 86400.0
    """Turns that were stored longer ago are not looked at: the stream does not keep them longer either."""
    restore_per_tick: int = 10_000
    """Most messages of a stream that one audit reads again: a large restore must not hold up the others."""
