"""Kahneman-Tversky optimization, from answers that were liked or not (arXiv:2402.01306).

As for `dpo`, the reference is the policy where the training starts. The reference point needs completions under prompts
that they do not belong to: each example is paired with the next one of its batch, so examples are put in order once, by
the seed, and every epoch has the same batches. The pairing is kept with every checkpoint beside the
reference: a training that is resumed with smaller batches has the mismatched answers that the reference has scored.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ratchet.core.chat_templates.conversations import Conversation
from ratchet.core.contract.snapshot import LabelRow
from ratchet.core.contract.training import EvaluationResults
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.chats import ChatRows, chat_rows
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import check_split, connected, rows_by_key, scores_of, split
from ratchet.trainer_worker.training.learner.preferences import (
    KtoWeights,
    Reference,
    Rows,
    entropy_mean,
    kto_loss,
    never,
    other_data,
    preference_scorer,
    score_all,
    score_sides,
    sequence_logprobs,
)
from ratchet.trainer_worker.training.learner.ranking import auc_over_tasks
from ratchet.trainer_worker.training.loop import Lesson, Loss, Mean, run_loop
from ratchet.trainer_worker.training.policy import TrainedPolicy

BETA = 0.1
CHANCE = 0.5
"""The AUC of a policy that has learnt nothing."""
PARTNERS = "partners.json"
"""In a checkpoint: for each example the one whose answer is put in its place."""


def train(spec: JobSpec, policy: TrainedPolicy, labels: Sequence[LabelRow], run: Run) -> Outcome:
    hyper = spec.config.hyperparameters
    chats = chat_rows(spec, policy)
    learn, held = split_labels(shuffled(labels, hyper.seed or 0), spec.holdout, hyper.seed or 0)
    partners: list[int] | None = None
    if run.resume is not None:
        partners = msgspec.json.decode((run.resume.directory / PARTNERS).read_bytes(), type=list[int])
    examples = labelled_rows(chats, learn, spec.batch_size, partners)
    # Held-out answers are compared with the next one of all of them, whatever the batches are.
    held_out = labelled_rows(chats, held, len(held)) if held else []
    scorer = preference_scorer(spec, policy)
    reference = Reference.open(scorer, [(example.rows, example.mismatched) for example in (*examples, *held_out)], run)
    weights = KtoWeights(
        beta=BETA if hyper.beta is None else hyper.beta,
        desirable=1.0 if hyper.desirable_weight is None else hyper.desirable_weight,
        undesirable=1.0 if hyper.undesirable_weight is None else hyper.undesirable_weight,
    )
    objective = Thumbs(scorer, examples, reference, weights)
    count = len(examples)

    def keep(directory: Path) -> None:
        reference.save(directory)
        (directory / PARTNERS).write_bytes(msgspec.json.encode([example.partner for example in examples]))

    def judged(stop_requested: Callable[[], bool]) -> EvaluationResults | None:
        apart = reference.of(range(count, count + len(held_out)))
        return evaluate(scorer, held_out, apart, weights, stop_requested)

    training = Lesson(
        objective,
        count,
        count,
        scorer.pass_tokens,
        in_order=True,
        keep=keep,
        ranks=scorer.ranks,
        evaluate=(lambda: scores_of(judged(never))) if held_out else None,
    )
    run.explained(chats.counts.findings())
    trained = run_loop(spec, policy, run, training)
    counts = {
        "liked": sum(example.liked for example in examples),
        "disliked": sum(not example.liked for example in examples),
        "held_out_labels": len(held_out),
        "unusable_labels": len(labels) - count - len(held_out),
        "trained_tokens": sum(row.trained for example in examples for row in example.rows),
    }
    return Outcome(
        samples=count,
        metrics=counts | trained.metrics | chats.counts.metrics(),
        probe_prompt=min((example.rows[0].prompt for example in examples), key=len),
        effective=trained.effective | {"max_length": chats.max_length} | weights.effective(),
        evaluation=judged(run.stop_requested),
        health_stop=trained.health_stop,
    )


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """One answer in its own place, and another answer in the same place."""

    rows: Rows
    mismatched: Rows
    liked: bool
    partner: int
    """Whose answer that is."""
    keys: tuple[str, ...] = ()
    """See `hold_out_keys`; answers that share one are of one task."""


@dataclass(frozen=True, slots=True)
class Thumbs:
    """`loop.Objective`: the KTO loss per example."""

    scorer: Scorer
    examples: Sequence[LabelledRows]
    reference: Reference
    """Of the answers and of the mismatched ones."""
    weights: KtoWeights

    def items(self, index: int) -> int:  # noqa: ARG002 - every example is one term of the mean
        """One."""
        return 1

    def tokens(self, index: int) -> int:
        """Those of its answer, and of the mismatched one."""
        example = self.examples[index]
        return sum(row.length for rows in (example.rows, example.mismatched) for row in rows)

    def losses(self, indices: Sequence[int]) -> Iterator[Loss]:
        # The reference point is that of the whole batch, in however many passes its examples are learnt from.
        mismatched = score_all(self.scorer, [self.examples[index].mismatched for index in indices])
        crossed = mismatched - self.reference.of(indices)[1]
        for part in self.scorer.passes([self.examples[index].rows for index in indices]):
            yield self._loss([indices[place] for place in part], crossed)

    def _loss(self, indices: Sequence[int], crossed: Tensor) -> Loss:
        examples = [self.examples[index] for index in indices]
        sequences = [example.rows for example in examples]
        logprobs, entropy = sequence_logprobs(self.scorer, sequences)
        liked = torch.tensor([example.liked for example in examples], device=logprobs.device)
        own = self.reference.of(indices)[0].to(logprobs)
        loss = kto_loss(logprobs - own, liked, crossed.to(logprobs), self.weights)
        above = loss.rewards_L > self.weights.beta * loss.reference_point
        metrics = {
            "policy_entropy": entropy_mean(entropy, sequences),
            "kl_divergence": Mean(float(loss.reference_point) * len(examples), len(examples)),
            "accuracy": Mean(float((above == liked).sum()), len(examples)),
            "rewards_chosen": Mean(float(loss.rewards_L[liked].sum()), int(liked.sum())),
            "rewards_rejected": Mean(float(loss.rewards_L[~liked].sum()), int((~liked).sum())),
        }
        rewards = loss.rewards_L
        return Loss(loss.loss_L.sum(), metrics, rewards[liked].tolist(), rewards[~liked].tolist())


def split_labels(
    labels: Sequence[LabelRow], holdout: float, seed: int
) -> tuple[Sequence[LabelRow], Sequence[LabelRow]]:
    """(to learn from, held out), both in order; answers to one prompt and those of one try stay together.

    Raises `DataUnusable` when one of both would be empty.
    """
    learn, held = split([hold_out_keys(label) for label in labels], holdout, seed)
    check_split(holdout, learn, held, "labelled answers")
    return [labels[index] for index in learn], [labels[index] for index in held]


def hold_out_keys(label: LabelRow) -> tuple[str, ...]:
    """Names of the try and, where there is one, of the prompt. Instructions alone are none: a role has the same."""
    keys = [f"trajectory:{label.trajectory_id}"]
    if any(message["role"] != "system" for message in label.prompt):
        keys.append(f"prompt:{msgspec.json.encode(label.prompt, order='sorted').decode()}")
    return tuple(keys)


@torch.no_grad()
def evaluate(
    scorer: Scorer,
    examples: Sequence[LabelledRows],
    reference: tuple[Tensor, Tensor],
    weights: KtoWeights,
    stop_requested: Callable[[], bool] = never,
) -> EvaluationResults | None:
    """What the held-out answers show; None without any.

    The reward of every answer is 0 under the reference, so its AUC is one half: the improvement is what is above that.
    Answers with one kind of thumb have none. Its interval is over tasks. The KL estimate is the reference point of the
    held-out answers: the mean log-ratio of mismatched ones, not below 0.
    """
    if not examples:
        return None
    own, crossed = score_sides(scorer, [(example.rows, example.mismatched) for example in examples], stop_requested)
    liked = torch.tensor([example.liked for example in examples])
    loss = kto_loss(own - reference[0], liked, crossed - reference[1], weights)
    good, bad = loss.rewards_L[liked].tolist(), loss.rewards_L[~liked].tolist()
    scores = {
        "holdout_liked": float(len(good)),
        "holdout_disliked": float(len(bad)),
        "holdout_loss": float(loss.loss_L.mean()),
        "holdout_kl": float(loss.reference_point),
    }
    scores |= {"holdout_rewards_chosen": statistics.fmean(good)} if good else {}
    scores |= {"holdout_rewards_rejected": statistics.fmean(bad)} if bad else {}
    if not (good and bad):
        return EvaluationResults(benchmark_scores=scores)
    task_of = {place: task for task, own in enumerate(connected([one.keys for one in examples])) for place in own}
    tasks = [task_of[place] for place in range(len(examples))]
    area, (low, high) = auc_over_tasks(loss.rewards_L.tolist(), liked.tolist(), tasks)
    scores |= {"holdout_auc": area, "holdout_auc_low": low, "holdout_auc_high": high}
    scores |= {"improvement_low": low - CHANCE, "improvement_high": high - CHANCE}
    scores["holdout_margin"] = statistics.fmean(good) - statistics.fmean(bad)
    return EvaluationResults(benchmark_scores=scores, improvement_over_baseline=area - CHANCE)


def shuffled(labels: Sequence[LabelRow], seed: int) -> list[LabelRow]:
    """In an order that depends on the seed and on nothing else."""
    order = sorted(labels, key=lambda label: label.trajectory_id)
    random.Random(seed).shuffle(order)
    return order


def labelled_rows(
    chats: ChatRows, labels: Sequence[LabelRow], batch: int, kept: Sequence[int] | None = None
) -> list[LabelledRows]:
    """Rows of every usable answer. Raises `DataUnusable` when there are fewer than two.

    Answers that cannot be learnt from are left out before others are paired with them. `kept` are the partners of a
    training that is resumed; without it they are the neighbours in batches of `batch`.
    """
    own = rows_by_key(chats.rows([_conversation(str(index), label, label) for index, label in enumerate(labels)]))
    usable = [index for index in range(len(labels)) if str(index) in own]
    if len(usable) < 2:
        raise DataUnusable("kto needs two labelled answers or more: it compares an answer with another one's place")
    partners = list(kept or [])
    if kept is None:
        # For each place the next one of its batch, the first after the last; alone in a batch, the one before.
        for begin in range(0, len(usable), batch):
            size = min(batch, len(usable) - begin)
            partners += [begin + (place + 1) % size for place in range(size)] if size > 1 else [begin - 1]
    if len(partners) != len(usable):
        raise other_data(len(partners), len(usable))
    crossed = [
        _conversation(str(place), labels[usable[place]], labels[usable[partner]])
        for place, partner in enumerate(partners)
    ]
    other = rows_by_key(chats.afresh().rows(crossed))
    return [
        # Where the other answer does not fit behind this prompt, the reference point is taken from the answer itself.
        LabelledRows(
            own[str(index)],
            other.get(str(place), own[str(index)]),
            labels[index].label,
            partner,
            hold_out_keys(labels[index]),
        )
        for place, (index, partner) in enumerate(zip(usable, partners, strict=True))
    ]


def _conversation(key: str, place: LabelRow, answer: LabelRow) -> Conversation:
    return Conversation(key, [*place.prompt, *answer.completion], place.tools, learn_from=len(place.prompt))
