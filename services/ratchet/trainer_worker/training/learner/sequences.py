"""Log-probabilities of whole sequences, under the policy and under its reference.

A sequence is one or more rows, and its score the sum over what learns in them. The reference is scored once, before the
first train step, and kept with every checkpoint: no second set of weights is held, and a resumed training has the very
same reference. Shapes: _S sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ratchet.trainer_worker.errors import DataUnusable, StopRequested
from ratchet.trainer_worker.training.algorithms.base import Run
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import check_head

SCORING_SEQUENCES = 16
"""Sequences scored at a time; they are ordered by length, so that few positions are padding."""

Rows = Sequence[Row]
"""Of one sequence: more than one where the chat template renders history differently."""

REFERENCE = "reference.safetensors"
"""In a checkpoint."""

Sides = tuple[Rows, Rows]
"""The two sequences of an example."""


def sequence_logprobs(scorer: Scorer, sequences: Sequence[Rows]) -> tuple[Tensor, float]:
    """(log-probability of each sequence, mean entropy of its distributions), with gradient where it is enabled."""
    rows = [row for sequence in sequences for row in sequence]
    scores = scorer.score(rows)
    of_rows = torch.stack([part.sum() for part in scores.logprobs_N.split([row.trained for row in rows])])
    sums_S = torch.stack([part.sum() for part in of_rows.split([len(sequence) for sequence in sequences])])
    return sums_S, float(scores.entropy_N.detach().mean())


def never() -> bool:
    """No stop is ever requested."""
    return False


@torch.no_grad()
def score_all(scorer: Scorer, sequences: Sequence[Rows], stop_requested: Callable[[], bool] = never) -> Tensor:
    """Log-probabilities of any number of sequences on the CPU, without gradient and without dropout.

    Raises `DataUnusable` when the model changes its logits in a way that the scorer does not know, and `StopRequested`
    as soon as that is so: a large data set takes minutes.
    """
    training = scorer.model.training
    scorer.model.eval()
    check_head(scorer, [sequence[0] for sequence in sequences])
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index][0].token_ids))
    logprobs_S = torch.zeros(len(sequences))
    for begin in range(0, len(order), SCORING_SEQUENCES):
        if stop_requested():
            raise StopRequested
        part = order[begin : begin + SCORING_SEQUENCES]
        logprobs_S[part] = sequence_logprobs(scorer, [sequences[index] for index in part])[0].float().cpu()
    scorer.model.train(training)
    return logprobs_S


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
        kept = load_file(run.resume.directory / REFERENCE)
        if len(kept["first"]) != len(examples):
            raise other_data(len(kept["first"]), len(examples))
        return cls(kept["first"], kept["second"])

    def of(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Of some examples: first sides, second sides."""
        return self.first[list(indices)], self.second[list(indices)]

    def save(self, directory: Path) -> None:
        """Keep it with a checkpoint."""
        save_file({"first": self.first, "second": self.second}, directory / REFERENCE)


def score_sides(scorer: Scorer, examples: Sequence[Sides], stop_requested: Callable[[], bool]) -> tuple[Tensor, Tensor]:
    """Log-probabilities now: first sides, second sides. Raises `StopRequested`."""
    scored = score_all(scorer, [side for sides in examples for side in sides], stop_requested)
    return scored[0::2].clone(), scored[1::2].clone()


def other_data(kept: int, given: int) -> DataUnusable:
    """The checkpoint was not made from what the snapshot holds."""
    return DataUnusable(f"the checkpoint was made from {kept} examples, the snapshot has {given} that can be used")
