"""Settings of the trainer worker."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import HttpAddress, ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_TRAINER_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_TRAINER_", frozen=True, populate_by_name=True)

    pool: str = "default"
    """Only jobs of this pool are taken."""
    slots: int = Field(default=1, ge=1)
    """Trainings that run at a time on this machine."""
    gpus: tuple[str, ...] | None = None
    """GPUs of the slots, one for each process of a training, as CUDA names them (number or UUID), as a JSON list.
    Unset: those of the worker's CUDA_VISIBLE_DEVICES, else all of the machine. `[]`: none."""
    ranks: int = Field(default=1, ge=1)
    """Processes of a training, which share its work, each on a GPU of its own where there are any. A job that asks for
    fewer GPUs has fewer; one that asks for more fails."""
    engine: Literal["local", "ray"] = "local"
    """Where the processes of a training run: on this machine, or wherever Ray has room for them (extra `ray`)."""
    ray_address: str | None = None
    """The Ray cluster that this machine is part of: `auto`, or its head's `host:port`. Unset: every training starts a
    cluster of its own on this machine."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of a training whose job does not say; on shared cores more than one is slower."""
    worker: str = Field(default_factory=socket.gethostname)
    """Name in statuses and of the working directory: two workers on one machine need two names."""
    price_per_hour_usd: float | None = Field(default=None, ge=0)
    """What an hour of this worker costs; statuses then say what an attempt has cost so far. Unset: they say nothing."""
    drain_s: float = Field(default=120.0, ge=0)
    """The longest time that a training has to stop when the worker does; what runs the worker must wait as long."""
    max_runtime_s: float = 4 * 3600.0
    """An attempt that takes longer fails with TIMEOUT."""

    gateway_url: HttpAddress = Field(
        default="http://127.0.0.1:8080",
        validation_alias=AliasChoices("RATCHET_TRAINER_GATEWAY_URL", "RATCHET_GATEWAY_URL", "gateway_url"),
    )
    """Where searches for bundles ask models: of the pool `prompts` alone."""

    @property
    def models(self) -> Path:
        """Cache of base models and adapters, by digest."""
        return self.shared.data_dir.resolve() / "models"

    @property
    def work(self) -> Path:
        """Directories of running attempts."""
        return self.shared.data_dir.resolve() / "trainer" / self.worker
