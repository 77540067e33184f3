"""A training on this machine, without a broker: what `ratchet rm-train` and `dpo-train` ask their process for."""

from __future__ import annotations

from ratchet.bus.message import Value
from ratchet.core.contract.training import TrainingConfig


class LoopOptions(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a training on this machine may set beside the hyperparameters of a job; absent: as in a job."""

    warmup_ratio: float | None = None
    """Share of the train steps in which the learning rate rises."""
    eval_steps: int | None = None
    """Train steps between evaluations on what is held out; None: five in all."""
    keep_end: bool = False
    """Rows that are too long lose their beginning, not their end."""
    held_out: int = 0
    """The last rows of the data are held out, so many."""
    reference: str | None = None
    """Directory or name of the reference model; None: the policy where the training starts."""


class LocalTraining(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A training, and where its files are."""

    config: TrainingConfig
    train: str
    """JSON lines to learn from, in TRL's preference format."""
    held_out: str | None = None
    """JSON lines to judge the result on."""
    output: str
    """The directory that gets the result; checkpoints of the same training in it are gone on from."""
    digest: str
    """sha256 of what the files hold."""
    loop: LoopOptions
