"""Rewards of whole conversations: where a reward model reads them, the Bradley-Terry loss, and what pairs show.

Shapes: _P pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ratchet.core.rules.intervals import wilson
from ratchet.trainer_worker.errors import DataUnusable, StopRequested
from ratchet.trainer_worker.training.learner.logprobs import HEAD_TOLERANCE, Scorer
from ratchet.trainer_worker.training.learner.pairs import RowPair, shares, won
from ratchet.trainer_worker.training.learner.preferences import never
from ratchet.trainer_worker.training.learner.ranking import auc, auc_interval
from ratchet.trainer_worker.training.learner.rows import Row


@dataclass(frozen=True, slots=True)
class ReadPair:
    """Both conversations of a pair, as a reward model reads them."""

    chosen: Row
    rejected: Row
    lengths: tuple[int, int]
    """Tokens of the answers, the chosen one's first."""
    keys: tuple[str, ...] = ()
    """Those of its `RowPair`."""


@dataclass(frozen=True, slots=True)
class RewardLoss:
    """Bradley-Terry per pair. The rewards carry no gradient."""

    loss_P: Tensor
    chosen_P: Tensor
    rejected_P: Tensor


def reward_loss(chosen_P: Tensor, rejected_P: Tensor, center: float = 0.0) -> RewardLoss:
    """The negative log-likelihood of the preferences (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155,
    eq. 1). `center` weighs the squared sum of both rewards, which keeps them around 0 (Eisenstein et al. 2023,
    arXiv:2312.09244, section 2.2): preferences alone leave a reward's level open.
    """
    loss_P = -logsigmoid(chosen_P - rejected_P)
    if center:
        loss_P = loss_P + center * (chosen_P + rejected_P) ** 2
    return RewardLoss(loss_P, chosen_P.detach(), rejected_P.detach())


def read_pair(pair: RowPair, pad: int | None) -> ReadPair:
    """A conversation of several rows is read at the end of its last one, which has all of it."""
    lengths = tuple(sum(row.trained for row in side) for side in pair.sides)
    return ReadPair(
        read_at_end(pair.chosen[-1], pad), read_at_end(pair.rejected[-1], pad), (lengths[0], lengths[1]), pair.keys
    )


def read_at_end(row: Row, pad: int | None) -> Row:
    """A row whose one place is behind the last token that is no padding, where transformers reads a reward too."""
    real = np.flatnonzero(row.token_ids != pad)
    end = int(real[-1]) + 1 if len(real) else row.length
    one = np.zeros(1, np.float32)
    return Row(row.trajectory_id, (row.token_ids[:end],), np.array([[end, end + 1]], np.int32), one, one + 1)


def check_reading(scorer: Scorer, pairs: Sequence[ReadPair]) -> None:
    """Raise `DataUnusable` when `scorer` and the model itself disagree on a reward, alone or in one pass with others.

    Models may pool hidden states, or look at earlier tokens, in ways that the learner does not know.
    """
    shortest = min((row for pair in pairs for row in (pair.chosen, pair.rejected)), key=lambda row: row.length)
    tolerance = HEAD_TOLERANCE[scorer.dtype].worst
    model: Any = scorer.model
    model.eval()
    with torch.no_grad():
        ids_1T = torch.tensor(shortest.token_ids[None], device=scorer.device).long()
        with scorer.autocast():
            own = float(model(input_ids=ids_1T).logits[0, 0])
        together = next((count for count in (2, 8, 32) if scorer.shared_prefix([shortest] * count)), 1)
        apart = max(abs(float(scorer.rewards([shortest] * count)[-1]) - own) for count in (1, together))
    if apart > tolerance * max(1.0, abs(own)):
        raise DataUnusable(f"the model reads a reward in a way the learner does not know: {own:.3f}, {apart:.3f} apart")


@torch.no_grad()
def reward_all(
    scorer: Scorer, pairs: Sequence[ReadPair], stop_requested: Callable[[], bool] = never
) -> tuple[Tensor, Tensor]:
    """Rewards of the chosen and of the rejected sides on the CPU, in passes that fit into memory, without gradient.

    Raises `StopRequested` as soon as a stop is asked for, unless there are several ranks: see `score_all`.
    """
    own_P2 = torch.zeros(len(pairs), 2)
    for part in scorer.passes([[pair.chosen, pair.rejected] for pair in pairs]):
        if scorer.ranks.alone and stop_requested():
            raise StopRequested
        rows = [row for index in part for row in (pairs[index].chosen, pairs[index].rejected)]
        own_P2[part] = scorer.rewards(rows).view(-1, 2).cpu()
    rewards_P2 = torch.stack(scorer.ranks.gather(own_P2)).sum(0)  # a pair is in one pass of one rank
    return rewards_P2[:, 0], rewards_P2[:, 1]


def right_by_length(learnt: Sequence[ReadPair], held: Sequence[ReadPair]) -> Tensor:
    """On which pairs a rule of thumb is right that has not seen them: the longer answer wins, or the shorter one,
    whichever it was more often in the pairs that were learnt from. 1, 0, or one half for a tie.
    """

    def longer_wins(pairs: Sequence[ReadPair]) -> Tensor:
        return won(torch.tensor([float(pair.lengths[0] - pair.lengths[1]) for pair in pairs]))

    by_length = longer_wins(held)
    return by_length if float(longer_wins(learnt).mean()) >= 0.5 else 1 - by_length


def reward_scores(
    prefix: str, pairs: Sequence[ReadPair], rewards: tuple[Tensor, Tensor], center: float
) -> dict[str, float]:
    """What rewards of pairs show: loss, pair accuracy, AUC, margin, and the intervals of both shares, over tasks."""
    chosen_P, rejected_P = rewards
    area = auc(chosen_P.tolist(), rejected_P.tolist())
    right = shares(pairs, won(chosen_P - rejected_P))
    (low, high), (least, most) = wilson(sum(right), len(right)), auc_interval(area, len(right), len(right))
    return {
        f"{prefix}_loss": float(reward_loss(chosen_P, rejected_P, center).loss_P.mean()),
        f"{prefix}_accuracy": statistics.fmean(right),
        f"{prefix}_accuracy_low": low,
        f"{prefix}_accuracy_high": high,
        f"{prefix}_auc": area,
        f"{prefix}_auc_low": least,
        f"{prefix}_auc_high": most,
        f"{prefix}_margin": float((chosen_P - rejected_P).mean()),
    }
