"""A reward model, from pairs: a scalar head learns which of two answers is preferred.

The loss is that of Bradley and Terry. A conversation is read whole, as the chat template renders it, at its last token.
What training makes is no policy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import EvaluationResults
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.chats import chat_rows
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import improvement, scores_of, shares, split_pairs, won
from ratchet.trainer_worker.training.learner.preferences import never
from ratchet.trainer_worker.training.learner.rewards import (
    ReadPair,
    check_reading,
    read_pair,
    reward_all,
    reward_loss,
    reward_scores,
    right_by_length,
)
from ratchet.trainer_worker.training.loop import Lesson, Loss, Mean, run_loop
from ratchet.trainer_worker.training.policy import TrainedPolicy

LEARNT_SAMPLE = 256
"""Pairs that it learnt from which are judged again at the end: how far it only remembers them."""


def train(spec: JobSpec, policy: TrainedPolicy, pairs: Sequence[PairRow], run: Run) -> Outcome:
    hyper = spec.config.hyperparameters
    chats = chat_rows(spec, policy)
    made, learn, held = split_pairs(chats, pairs, spec)
    read = [read_pair(pair, policy.pad) for pair in made.pairs]
    scorer = Scorer(policy.model, bf16=policy.bf16, pass_tokens=hyper.pass_tokens, ranks=policy.ranks)
    check_reading(scorer, read)
    learnt, held_out = [read[index] for index in learn], [read[index] for index in held]
    center = hyper.center_rewards_coefficient or 0.0
    objective = BradleyTerry(scorer, learnt, center)

    def judged(stop_requested: Callable[[], bool]) -> EvaluationResults | None:
        return evaluate(scorer, learnt, held_out, center, stop_requested)

    training = Lesson(
        objective,
        len(learn),
        len(learn),
        scorer.pass_tokens,
        ranks=scorer.ranks,
        evaluate=(lambda: scores_of(judged(never))) if held else None,
    )
    run.explained(chats.counts.findings())
    trained = run_loop(spec, policy, run, training)
    counts = made.counts(learn, held) | {"trained_tokens": sum(sum(pair.lengths) for pair in learnt)}
    sample = learnt[:LEARNT_SAMPLE]
    remembered = reward_scores("train", sample, reward_all(scorer, sample, run.stop_requested), center)
    return Outcome(
        samples=len(learn),
        metrics=counts | trained.metrics | remembered | chats.counts.metrics(),
        effective=trained.effective | {"max_length": chats.max_length, "center_rewards_coefficient": center},
        evaluation=judged(run.stop_requested),
        health_stop=trained.health_stop,
    )


@dataclass(frozen=True, slots=True)
class BradleyTerry:
    """`loop.Objective`: the loss per pair."""

    scorer: Scorer
    pairs: Sequence[ReadPair]
    center: float

    def items(self, index: int) -> int:  # noqa: ARG002 - every pair is one term of the mean
        """One."""
        return 1

    def tokens(self, index: int) -> int:
        """Those of both sides."""
        return self.pairs[index].chosen.length + self.pairs[index].rejected.length

    def losses(self, indices: Sequence[int]) -> Iterator[Loss]:
        # Both sides of a pair go through the model together: the prompt that they share is run once.
        for part in self.scorer.passes([[self.pairs[index].chosen, self.pairs[index].rejected] for index in indices]):
            yield self._loss([self.pairs[indices[place]] for place in part])

    def _loss(self, pairs: Sequence[ReadPair]) -> Loss:
        rewards = self.scorer.rewards([row for pair in pairs for row in (pair.chosen, pair.rejected)]).view(-1, 2)
        loss = reward_loss(rewards[:, 0], rewards[:, 1], self.center)
        count = len(pairs)
        metrics = {
            "accuracy": Mean(float((loss.chosen_P > loss.rejected_P).sum()), count),
            "rewards_chosen": Mean(float(loss.chosen_P.sum()), count),
            "rewards_rejected": Mean(float(loss.rejected_P.sum()), count),
        }
        return Loss(loss.loss_P.sum(), metrics, loss.chosen_P.tolist(), loss.rejected_P.tolist())


def evaluate(
    scorer: Scorer,
    learnt: Sequence[ReadPair],
    held_out: Sequence[ReadPair],
    center: float = 0.0,
    stop_requested: Callable[[], bool] = never,
) -> EvaluationResults | None:
    """What the held-out pairs show; None without any. Improvement: accuracy less that of the rule of thumb that the
    longer answer wins, or the shorter one, with its 95 % interval.
    """
    if not held_out:
        return None
    chosen, rejected = reward_all(scorer, held_out, stop_requested)
    by_length = shares(held_out, right_by_length(learnt, held_out))
    gain, interval = improvement(by_length, shares(held_out, won(chosen - rejected)))
    scores = {"holdout_pairs": float(len(held_out)), "holdout_length_accuracy": statistics.fmean(by_length)}
    scores |= reward_scores("holdout", held_out, (chosen, rejected), center) | interval
    return EvaluationResults(benchmark_scores=scores, improvement_over_baseline=gain)
