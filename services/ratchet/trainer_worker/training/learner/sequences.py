"""Log-probabilities of whole sequences: a sequence is one or more rows, and its score the sum over what learns in them.

Shapes: _S sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ratchet.trainer_worker.errors import StopRequested
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import check_head

SCORING_SEQUENCES = 16
"""Sequences scored at a time; they are ordered by length, so that few positions are padding."""

Rows = Sequence[Row]
"""Of one sequence: more than one where the chat template renders history differently."""


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
