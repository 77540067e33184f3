"""Direct preference optimization, from pairs, on assistant tokens only (arXiv:2305.18290).

The reference is the policy where the training starts: the starting adapter, the base under a new adapter, or the model
of a full fine-tune.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import EvaluationResults
from ratchet.core.rules.intervals import wilson
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.chats import chat_rows
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import RowPair, improvement, scores_of, shares, split_pairs, won
from ratchet.trainer_worker.training.learner.preferences import (
    PairLogprobs,
    Reference,
    dpo_loss,
    entropy_mean,
    never,
    preference_scorer,
    score_sides,
    sequence_logprobs,
)
from ratchet.trainer_worker.training.loop import Lesson, Loss, Mean, run_loop
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_reference

BETA = 0.1


def train(spec: JobSpec, policy: TrainedPolicy, pairs: Sequence[PairRow], run: Run) -> Outcome:
    hyper = spec.config.hyperparameters
    chats = chat_rows(spec, policy)
    made, learn, held = split_pairs(chats, pairs, spec)
    scorer = preference_scorer(spec, policy)
    of_reference = scorer
    if spec.loop.reference is not None:  # not the policy where the training starts
        of_reference = preference_scorer(spec, policy, load_reference(spec.loop.reference, policy))
    reference = Reference.open(of_reference, [pair.sides for pair in made.pairs], run)
    beta = BETA if hyper.beta is None else hyper.beta
    smoothing = hyper.label_smoothing or 0.0
    objective = Preference(scorer, [made.pairs[index] for index in learn], reference.of(learn), beta, smoothing)
    held_out = [made.pairs[index] for index in held]

    def judged(stop_requested: Callable[[], bool]) -> EvaluationResults | None:
        return evaluate(scorer, held_out, reference.of(held), beta, stop_requested, label_smoothing=smoothing)

    training = Lesson(
        objective,
        len(learn),
        len(learn),
        scorer.pass_tokens,
        keep=reference.save,
        ranks=scorer.ranks,
        evaluate=(lambda: scores_of(judged(never))) if held else None,
    )
    run.explained(chats.counts.findings())
    trained = run_loop(spec, policy, run, training)
    rows = [row for pair in objective.pairs for side in pair.sides for row in side]
    counts = made.counts(learn, held) | {"trained_tokens": sum(row.trained for row in rows)}
    return Outcome(
        samples=len(learn),
        metrics=counts | trained.metrics | chats.counts.metrics(),
        probe_prompt=min((pair.chosen[0].prompt for pair in objective.pairs), key=len),
        effective=trained.effective | {"max_length": chats.max_length, "beta": beta, "label_smoothing": smoothing},
        evaluation=judged(run.stop_requested),
        health_stop=trained.health_stop,
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """`loop.Objective`: the DPO loss per pair."""

    scorer: Scorer
    pairs: Sequence[RowPair]
    reference: tuple[Tensor, Tensor]
    """Log-probabilities of chosen and of rejected sides under the reference."""
    beta: float
    label_smoothing: float

    def items(self, index: int) -> int:  # noqa: ARG002 - every pair is one term of the mean
        """One."""
        return 1

    def tokens(self, index: int) -> int:
        """Those of both sides."""
        return sum(row.length for side in self.pairs[index].sides for row in side)

    def losses(self, indices: Sequence[int]) -> Iterator[Loss]:
        # Both sides of a pair go through the model together: the prompt that they share is run once.
        pairs = [[row for side in self.pairs[index].sides for row in side] for index in indices]
        for part in self.scorer.passes(pairs):
            yield self._loss([indices[place] for place in part])

    def _loss(self, indices: Sequence[int]) -> Loss:
        count = len(indices)
        sides = [self.pairs[index].chosen for index in indices] + [self.pairs[index].rejected for index in indices]
        logprobs, entropy = sequence_logprobs(self.scorer, sides)
        chosen, rejected = (side[list(indices)].to(logprobs) for side in self.reference)
        loss = dpo_loss(
            PairLogprobs(logprobs[:count], logprobs[count:], chosen, rejected), self.beta, self.label_smoothing
        )
        metrics = {
            "policy_entropy": entropy_mean(entropy, sides),
            "accuracy": Mean(float((loss.margins > 0).sum()), count),
            "rewards_chosen": Mean(float(loss.rewards_chosen_P.sum()), count),
            "rewards_rejected": Mean(float(loss.rewards_rejected_P.sum()), count),
        }
        return Loss(loss.loss_P.sum(), metrics)


def evaluate(
    scorer: Scorer,
    pairs: Sequence[RowPair],
    reference: tuple[Tensor, Tensor],
    beta: float,
    stop_requested: Callable[[], bool] = never,
    *,
    label_smoothing: float = 0.0,
) -> EvaluationResults | None:
    """What the held-out pairs show; None without any.

    Accuracy: the share of pairs whose chosen side is the likelier one, before (reference) and after. Win rate: the
    share on which the policy prefers the chosen side more than the reference does (one half where nothing was learnt),
    with its 95 % interval. Improvement: accuracy after less accuracy before, with its own. Every task counts the same.
    """
    if not pairs:
        return None
    chosen, rejected = score_sides(scorer, [pair.sides for pair in pairs], stop_requested)
    before, after = reference[0] - reference[1], chosen - rejected
    gained, right_before, right = (shares(pairs, won(margins)) for margins in (after - before, before, after))
    low, high = wilson(sum(gained), len(gained))
    gain, interval = improvement(right_before, right)
    loss = dpo_loss(PairLogprobs(chosen, rejected, *reference), beta, label_smoothing)
    scores = {
        "holdout_pairs": float(len(pairs)),
        "holdout_loss": float(loss.loss_P.mean()),
        "holdout_accuracy_before": statistics.fmean(right_before),
        "holdout_accuracy": statistics.fmean(right),
        "holdout_win_rate": statistics.fmean(gained),
        "holdout_win_rate_low": low,
        "holdout_win_rate_high": high,
        "holdout_margin": beta * float((after - before).mean()),
    }
    return EvaluationResults(benchmark_scores=scores | interval, improvement_over_baseline=gain)
