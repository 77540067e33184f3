"""Whole sequences under the policy and under its reference: their log-probabilities, and the losses of DPO and KTO.

A sequence is one or more rows, and its score the sum over what learns in them. The reference is scored once, before the
first train step, and kept with every checkpoint: no second set of weights is held, and a resumed training has the very
same reference. The losses are pure: tensors in, a loss with its terms out.

Shapes: _S sequences, _P pairs, _L labelled examples, _M mismatched examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from ratchet.trainer_worker.errors import DataUnusable, StopRequested
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Run
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.loop import Mean
from ratchet.trainer_worker.training.policy import TrainedPolicy

Rows = Sequence[Row]
"""Of one sequence: more than one where the chat template renders history differently."""

REFERENCE = "reference.safetensors"
"""In a checkpoint."""

Sides = tuple[Rows, Rows]
"""The two sequences of an example."""


def sequence_logprobs(scorer: Scorer, sequences: Sequence[Rows]) -> tuple[Tensor, float]:
    """(log-probability of each sequence, summed entropy of its distributions), with gradient where it is enabled.

    All sequences are one pass.
    """
    rows = [row for sequence in sequences for row in sequence]
    scores = scorer.score(rows)
    of_rows = torch.stack([part.sum() for part in scores.logprobs_N.split([row.trained for row in rows])])
    sums_S = torch.stack([part.sum() for part in of_rows.split([len(sequence) for sequence in sequences])])
    return sums_S, float(scores.entropy_N.detach().sum())


def entropy_mean(entropy: float, sequences: Sequence[Rows]) -> Mean:
    """The metric that a summed entropy of sequences is."""
    return Mean(entropy, sum(row.trained for sequence in sequences for row in sequence))


def never() -> bool:
    """No stop is ever requested."""
    return False


@torch.no_grad()
def score_all(scorer: Scorer, sequences: Sequence[Rows], stop_requested: Callable[[], bool] = never) -> Tensor:
    """Log-probabilities of any number of sequences on the CPU, in passes that fit into memory, without gradient.

    Raises `StopRequested` as soon as a stop is asked for: a large data set takes minutes. Several ranks, which must all
    stop at the same place, go on to the end.
    """
    own_S = torch.zeros(len(sequences))
    for part in scorer.passes(sequences):
        if scorer.ranks.alone and stop_requested():
            raise StopRequested
        own_S[part] = sequence_logprobs(scorer, [sequences[index] for index in part])[0].float().cpu()
    return torch.stack(scorer.ranks.gather(own_S)).sum(0)  # a sequence is in one pass of one rank


def preference_scorer(spec: JobSpec, policy: TrainedPolicy, model: nn.Module | None = None) -> Scorer:
    """Of the policy, or of another `model` as its reference.

    Without an adapter's dropout the policy at the start is its own reference, as in TRL.
    """
    asked = spec.config.hyperparameters.pass_tokens
    scored = policy.model if model is None else model
    return Scorer(scored, bf16=policy.bf16, lora_dropout=False, pass_tokens=asked, ranks=policy.ranks)


@dataclass(frozen=True, slots=True)
class Reference:
    """Of both sides of every example."""

    first: Tensor
    second: Tensor

    @classmethod
    def open(cls, scorer: Scorer, examples: Sequence[Sides], run: Run) -> Reference:
        """From the checkpoint that is resumed, else by scoring all examples now.

        Raises `DataUnusable` when the model computes in a way that the scorer does not know.
        """
        check_head(scorer, [row for sides in examples for side in sides for row in side])
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


@dataclass(frozen=True, slots=True)
class PairLogprobs:
    """Sums over the learning tokens of both sides of each pair."""

    chosen_P: Tensor
    rejected_P: Tensor
    reference_chosen_P: Tensor
    reference_rejected_P: Tensor


@dataclass(frozen=True, slots=True)
class PairLoss:
    """DPO per pair. The implicit rewards carry no gradient."""

    loss_P: Tensor
    rewards_chosen_P: Tensor
    rewards_rejected_P: Tensor

    @property
    def margins(self) -> Tensor:
        """By how much the chosen side is rewarded more."""
        return self.rewards_chosen_P - self.rewards_rejected_P


@dataclass(frozen=True, slots=True)
class KtoWeights:
    """How much the two kinds of example count, and how far the policy may leave the reference."""

    beta: float
    desirable: float = 1.0
    undesirable: float = 1.0

    def effective(self) -> dict[str, float]:
        """By their names in a request."""
        return {"beta": self.beta, "desirable_weight": self.desirable, "undesirable_weight": self.undesirable}


@dataclass(frozen=True, slots=True)
class KtoLoss:
    """KTO per example. The implicit rewards and the reference point carry no gradient."""

    loss_L: Tensor
    rewards_L: Tensor
    reference_point: Tensor
    """Estimated KL divergence from the reference, in nats, not negative."""


def dpo_loss(scores: PairLogprobs, beta: float, label_smoothing: float = 0.0) -> PairLoss:
    """Direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290, eq. 7).

    `label_smoothing` is the probability that a preference was noted the wrong way round: conservative DPO (Mitchell
    2023, "A note on DPO with noisy preferences", eq. 3).
    """
    chosen_P = beta * (scores.chosen_P - scores.reference_chosen_P)
    rejected_P = beta * (scores.rejected_P - scores.reference_rejected_P)
    margin_P = chosen_P - rejected_P
    loss_P = -(1 - label_smoothing) * logsigmoid(margin_P) - label_smoothing * logsigmoid(-margin_P)
    return PairLoss(loss_P, chosen_P.detach(), rejected_P.detach())


def kto_loss(log_ratio_L: Tensor, desirable_L: Tensor, mismatched_log_ratio_M: Tensor, weights: KtoWeights) -> KtoLoss:
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8).

    Log-ratios are policy minus reference, of whole completions. The reference point z0 is the mean log-ratio of
    completions under prompts that they do not belong to, not below 0; no gradient flows through it (section 4.2).
    An example's loss is its weight times 1 - sigmoid(beta (log-ratio - z0)), with the sign turned where it is
    undesirable: the paper's constant term makes no difference to the gradient and keeps the loss above 0.
    """
    reference_point = mismatched_log_ratio_M.detach().mean().clamp(min=0)
    distance_L = weights.beta * (log_ratio_L - reference_point)
    weight_L = torch.where(desirable_L, weights.desirable, weights.undesirable)
    value_L = torch.sigmoid(torch.where(desirable_L, distance_L, -distance_L))
    return KtoLoss(weight_L * (1 - value_L), (weights.beta * log_ratio_L).detach(), reference_point)
