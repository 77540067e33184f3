"""Log-probabilities under the reference: taken once, before the first train step, and kept with every checkpoint.

So no second set of weights is held, and a resumed training has the very same reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.algorithms.base import Run
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.sequences import Rows, score_all

FILE = "reference.safetensors"
"""In a checkpoint."""

Sides = tuple[Rows, Rows]
"""The two sequences of an example."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Of both sides of every example."""

    first: Tensor
    second: Tensor

    @classmethod
    def open(cls, scorer: Scorer, examples: Sequence[Sides], run: Run) -> Reference:
        """From the checkpoint that is resumed, else by scoring all examples now."""
        if run.resume is None:
            return cls(*score_sides(scorer, examples, run.stop_requested))
        kept = load_file(run.resume.directory / FILE)
        if len(kept["first"]) != len(examples):
            raise other_data(len(kept["first"]), len(examples))
        return cls(kept["first"], kept["second"])

    def of(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of some examples: first sides, second sides."""
        return self.first[list(indices)], self.second[list(indices)]

    def save(self, directory: Path) -> None:
        """Keep it with a checkpoint."""
        save_file({"first": self.first, "second": self.second}, directory / FILE)


def score_sides(scorer: Scorer, examples: Sequence[Sides], stop_requested: Callable[[], bool]) -> tuple[Tensor, Tensor]:
    """Log-probabilities now: first sides, second sides. Raises `StopRequested`."""
    scored = score_all(scorer, [side for sides in examples for side in sides], stop_requested)
    return scored[0::2].clone(), scored[1::2].clone()


def other_data(kept: int, given: int) -> DataUnusable:
    """The checkpoint was not made from what the snapshot holds."""
    return DataUnusable(f"the checkpoint was made from {kept} examples, the snapshot has {given} that can be used")
