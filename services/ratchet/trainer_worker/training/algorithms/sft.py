"""Supervised fine-tuning, on assistant tokens only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.core.chat_templates.conversations import Conversation, conversations_of
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.chats import chat_rows
from ratchet.trainer_worker.training.learner.advantages import Scored
from ratchet.trainer_worker.training.learner.holdout import HeldOut, hold_out, likelihood_gained
from ratchet.trainer_worker.training.learner.logprobs import Scorer, check_head
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.loop import Lesson, Loss, Mean, run_loop
from ratchet.trainer_worker.training.policy import TrainedPolicy


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    chats = chat_rows(spec, policy)
    scored: dict[str, Scored] = {}

    def conversations() -> Iterator[Conversation]:
        for row in trajectories:
            scored[row.trajectory_id] = Scored(row.trajectory_id, row.task_key, row.reward)
            yield from conversations_of(row)

    rows = chats.rows(conversations())
    asked = spec.config.hyperparameters.pass_tokens
    scorer = Scorer(policy.model, bf16=policy.bf16, pass_tokens=asked, ranks=policy.ranks)
    check_head(scorer, rows)
    held: HeldOut | None = None
    if spec.holdout:
        apart = hold_out(spec, {row.trajectory_id: scored[row.trajectory_id].task_key for row in rows})
        held_rows = [row for row in rows if row.trajectory_id in apart]
        held = HeldOut.begin(spec, scorer, held_rows, scored.values(), likelihood_gained, run.stop_requested)
        rows = [row for row in rows if row.trajectory_id not in apart]
    samples = len({row.trajectory_id for row in rows})
    training = Lesson(
        Likelihood(scorer, rows),
        len(rows),
        samples,
        scorer.pass_tokens,
        ranks=scorer.ranks,
        evaluate=held.scores if held else None,
    )
    run.explained(chats.counts.findings())
    trained = run_loop(spec, policy, run, training)
    counts: dict[str, Any] = {"rows": len(rows), "trained_tokens": sum(row.trained for row in rows)}
    return Outcome(
        samples=samples,
        metrics=counts | chats.counts.metrics() | trained.metrics,
        probe_prompt=min((row.prompt for row in rows), key=len),
        effective=trained.effective | {"max_length": chats.max_length},
        evaluation=held.results(run.stop_requested) if held else None,
        health_stop=trained.health_stop,
    )


@dataclass(frozen=True, slots=True)
class Likelihood:
    """`loop.Objective`: negative log-likelihood per learning token."""

    scorer: Scorer
    rows: Sequence[Row]

    def items(self, index: int) -> int:
        """Its learning tokens."""
        return self.rows[index].trained

    def tokens(self, index: int) -> int:
        """All of its row."""
        return self.rows[index].length

    def losses(self, indices: Sequence[int]) -> Iterator[Loss]:
        rows = [self.rows[index] for index in indices]
        for part in self.scorer.passes([[row] for row in rows]):
            scores = self.scorer.score([rows[place] for place in part])
            entropy = Mean(float(scores.entropy_N.detach().sum()), len(scores.entropy_N))
            yield Loss(-scores.logprobs_N.sum(), {"policy_entropy": entropy})
