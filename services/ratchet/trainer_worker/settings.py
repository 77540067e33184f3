"""Settings of the trainer worker."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from ratchet.core.service.settings import ServiceSettings


class Settings(ServiceSettings):
    """Read from `RATCHET_TRAINER_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_TRAINER_", frozen=True)

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
    sharded: bool = False
    """Share the weights of the base's layers among the processes of a training (FSDP2), for bases that one GPU cannot
    hold. Only with `ranks` of 2 or more, and for adapters: a full fine-tune and a base in 4 bits fail."""
    engine: Literal["local", "ray"] = "local"
    """Where the processes of a training run: on this machine, or wherever Ray has room for them (extra `ray`)."""
    ray_address: str | None = None
    """The Ray cluster that this machine is part of: `auto`, or its head's `host:port`. Unset: every training starts a
    cluster of its own on this machine."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of a training whose job does not say; on shared cores more than one is slower."""
    warm: bool = True
    """Import the training libraries once, in a process that every training is forked from (Linux only)."""
    warm_delay_s: float = Field(default=20.0, ge=0)
    """How long after the worker's start that process begins to import, unless a training needs it earlier: at the start
    of a whole stack the cores are the other services'."""
    spare: bool | None = None
    """Keep a process ready for each slot that is free, which has started its GPU and waits for a training. Unset: where
    there are GPUs. Only with `warm`."""
    worker: str = Field(default_factory=socket.gethostname)
    """Name in statuses and of the working directory: two workers on one machine need two names."""
    price_per_hour_usd: float | None = Field(default=None, ge=0)
    """What an hour of this worker costs; statuses then say what an attempt has cost so far. Unset: they say nothing."""
    heartbeat_s: float = 2.0
    """Time between `running` statuses; the coordinator gives a job away after 30 s of silence."""
    watch_s: float = 1.0
    """Time between looks at the job's state: how soon a cancel or a newer attempt is noticed."""
    checkpoint_s: float = Field(default=300.0, gt=0)
    """Longest time between two checkpoints of a training, however many train steps lie between them; longer where
    checkpoints would take more than a tenth of its time. What a crash loses."""
    grace_s: float = 20.0
    """A training that was asked to stop and has not within this time is killed. It has longer where its train steps and
    checkpoints take long: twice the longest so far of both."""
    drain_s: float = Field(default=120.0, ge=0)
    """The longest such time while the worker itself shuts down; whatever runs the worker must wait as long."""
    retry_s: float = Field(default=1.0, gt=0)
    """Pause after the broker or the object store did not answer."""
    max_runtime_s: float = 4 * 3600.0
    """An attempt that takes longer fails with TIMEOUT."""

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.sharded and self.ranks < 2:
            raise ValueError("sharded needs ranks of 2 or more: one process alone has all weights")
        return self

    @property
    def models(self) -> Path:
        """Cache of base models and adapters, by digest."""
        return self.shared.data_dir.resolve() / "models"

    @property
    def work(self) -> Path:
        """Directories of running attempts."""
        return self.shared.data_dir.resolve() / "trainer" / self.worker
