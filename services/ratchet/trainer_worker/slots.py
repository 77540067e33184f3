"""The slots of a worker: places of one training each, with GPUs of its own where the machine has any."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ratchet.core.errors import ConfigError, Rejected
from ratchet.trainer_worker.child_process import CUDA_VARIABLE, TRAINING, Child, WarmStart
from ratchet.trainer_worker.job import JobSpec

DEVICES = Path("/dev")
DEVICE_FILE = re.compile(r"nvidia([0-9]+)")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one training."""

    instance: str
    """The worker process that has the slot: two workers of one name differ in it."""
    gpu: str | None = None
    """The only GPUs that its trainings see, as CUDA names them, with commas between. Empty: none. None: whatever the
    worker itself sees.
    """
    warm: WarmStart | None = None
    """Makes processes that need not import anything; without it every one is fresh."""

    ranks: int = 1
    """Processes of a training; each has one of the GPUs."""

    program: Sequence[str] = TRAINING
    """See `Child.start`. Another one than that of this machine is not forked."""

    async def start(self, spec: JobSpec, directory: Path) -> Child:
        """Start the training process of the job in `directory`. Raises `Rejected` when it needs a larger slot."""
        spec = replace(spec, ranks=self.ranks_for(spec))
        return await Child.start(spec, directory, self.warm, self.gpu, self.program)

    def ranks_for(self, spec: JobSpec) -> int:
        """As many processes as the job asks GPUs for, else all that the slot has."""
        compute = spec.config.compute
        asked = (compute.gpu_count if compute else None) or self.ranks
        if asked > self.ranks:
            raise Rejected(
                f"compute.gpu_count {asked}: a training of this worker has {self.ranks}; RATCHET_TRAINER_RANKS sets it"
            )
        return asked


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
    slots: int, chosen: Sequence[str] | None, visible: Sequence[str] | None, each: int = 1
) -> Sequence[str] | Sequence[None]:
    """The GPUs of each slot: `each` of `chosen`, else of those that are `visible`. See `Slot.gpu`.

    Raises `ConfigError` when two trainings would share a GPU.
    """
    names = visible if chosen is None else chosen
    if names is None:
        return [None] * slots
    if not names:
        return [""] * slots
    if len(set(names)) < len(names):
        raise ConfigError(f"RATCHET_TRAINER_GPUS names a GPU twice: {', '.join(names)}; a slot's GPU is its own")
    if slots * each > len(names):
        of_several = "" if each == 1 else f" of {each} processes"
        raise ConfigError(
            f"{slots} slots{of_several} need {slots * each} GPUs, and there are {len(names)}: set RATCHET_TRAINER_SLOTS"
            f" to at most {len(names) // each}, or RATCHET_TRAINER_GPUS to [] for trainings on the CPU"
        )
    return [",".join(names[first : first + each]) for first in range(0, slots * each, each)]
