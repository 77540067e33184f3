"""The slots of a worker: places of one training each, with a GPU of its own where the machine has any."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ConfigError
from ratchet.trainer_worker.child_process import CUDA_VARIABLE, Child, WarmStart
from ratchet.trainer_worker.job import JobSpec

DEVICES = Path("/dev")
DEVICE_FILE = re.compile(r"nvidia([0-9]+)")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one training."""

    instance: str
    """The worker process that has the slot: two workers of one name differ in it."""
    gpu: str | None = None
    """The only GPU that its trainings see, as CUDA names it. Empty: none. None: whatever the worker itself sees."""
    warm: WarmStart | None = None
    """Makes processes that need not import anything; without it every one is fresh."""

    async def start(self, spec: JobSpec, directory: Path) -> Child:
        """Start the training process of the job in `directory`."""
        return await Child.start(spec, directory, self.warm, self.gpu)


def visible_gpus(environment: Mapping[str, str], devices: Path = DEVICES) -> tuple[str, ...] | None:
    """The GPUs that a process of this environment sees, as CUDA names them; None when nothing tells.

    CUDA ignores what stands after a name that it does not know, such as -1.
    """
    named = environment.get(CUDA_VARIABLE)
    if named is not None:
        names = [name.strip() for name in named.split(",")]
        known = names.index("-1") if "-1" in names else len(names)
        return tuple(name for name in names[:known] if name)
    # A container has device files of its own GPUs alone, with the numbers of the machine; CUDA counts them from 0.
    count = sum(1 for path in devices.iterdir() if DEVICE_FILE.fullmatch(path.name)) if devices.is_dir() else 0
    return tuple(str(number) for number in range(count)) if count else None


def gpus_of_slots(
    slots: int, chosen: Sequence[str] | None, visible: Sequence[str] | None
) -> Sequence[str] | Sequence[None]:
    """The GPU of each slot: one of `chosen`, else of those that are `visible`. See `Slot.gpu`.

    Raises `ConfigError` when two trainings would share a GPU.
    """
    names = visible if chosen is None else chosen
    if names is None:
        return [None] * slots
    if not names:
        return [""] * slots
    if len(set(names)) < len(names):
        raise ConfigError(f"RATCHET_TRAINER_GPUS names a GPU twice: {', '.join(names)}; a slot's GPU is its own")
    if slots > len(names):
        raise ConfigError(
            f"{slots} slots need {slots} GPUs, and there are {len(names)}: set RATCHET_TRAINER_SLOTS to at most "
            f"{len(names)}, or RATCHET_TRAINER_GPUS to [] for trainings on the CPU"
        )
    return names[:slots]
