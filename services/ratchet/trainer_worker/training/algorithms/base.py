"""What an algorithm is, and what it gets from the process that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ratchet.bus.message import JsonObject
from ratchet.core.contract.training import EvaluationResults, HealthStop
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.checkpoints import Checkpoint

if TYPE_CHECKING:  # which imports torch: the code of a package need not
    from ratchet.trainer_worker.training.policy import TrainedPolicy


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One finished train step."""

    number: int
    total: int
    epoch: int
    total_epochs: int
    metrics: Mapping[str, float]


class Run(Protocol):
    """The running training as an algorithm sees it."""

    resume: Checkpoint | None
    """Where to go on; None at the beginning."""

    def explained(self, findings: Sequence[str]) -> None:
        """What was found in the data, before `started`: a sentence for all that is lost, or learnt by mistake."""
        ...

    def started(self, samples: int, total_steps: int) -> None:
        """Data and model are loaded."""
        ...

    def stepped(self, step: TrainStep) -> None:
        """Report one train step. Raises `Diverged` when its loss is not finite."""
        ...

    def stop_requested(self) -> bool:
        """True once the training shall stop; asked at step boundaries and while examples are scored."""
        ...

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint belongs after this train step."""
        ...

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """Keep a checkpoint whose files `write` puts into a directory."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended."""

    samples: int
    """Trajectories, pairs or labels that were learnt from."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    final_reward: float | None = None
    probe_prompt: Sequence[int] = ()
    """A real prompt of the dataset, to probe the policy with."""
    effective: JsonObject = field(default_factory=dict[str, Any])
    """The hyperparameters as they reached what trained, defaults filled in."""
    evaluation: EvaluationResults | None = None
    """On what was held out."""
    health_stop: HealthStop | None = None
    """Why it was stopped before its last train step; the policy has the newest healthy weights."""


class Train(Protocol):
    """The code of an algorithm: one way of learning from a snapshot. Changes `policy` in place."""

    def __call__(self, spec: JobSpec, policy: TrainedPolicy, examples: Sequence[Any], run: Run, /) -> Outcome:
        """`examples`: rows of the format that `rules.algorithms` declares (`Any`: each has its own type).

        Raises `StopRequested` when a stop was asked for, and what is new was saved.
        """
        ...
