"""Supervised fine-tuning on TRL, on assistant tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.chats import ChatRows, Conversation, chat_length
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy
from ratchet.trainer_worker.training.trl_loop import Defaults, Loss, TrlTraining, run_trl

DEFAULTS = Defaults(adapter_learning_rate=2e-4, full_learning_rate=2e-5)


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    """See `algorithms.base.Train`."""
    max_length = chat_length(policy.model, spec.config.hyperparameters.max_length)
    chats = ChatRows(policy.tokenizer, max_length)
    rows = chats.rows([Conversation(one.trajectory_id, one.messages, one.tools) for one in trajectories])
    samples = len({row.trajectory_id for row in rows})
    objective = Likelihood(Scorer(policy.model, bf16=policy.bf16), rows)
    trained = run_trl(spec, policy, run, TrlTraining(objective, len(rows), samples, DEFAULTS))
    if trained.stopped_at is not None:
        return Outcome(samples=samples, stopped_at=trained.stopped_at)
    counts: dict[str, Any] = {"rows": len(rows), "trained_tokens": sum(row.trained for row in rows)}
    return Outcome(
        samples=samples,
        metrics=counts | chats.counts.metrics() | trained.metrics,
        probe_prompt=min((row.prompt for row in rows), key=len),
        effective=trained.effective | {"max_length": max_length},
    )


@dataclass(frozen=True, slots=True)
class Likelihood:
    """`trl_loop.Objective`: negative log-likelihood per learning token."""

    scorer: Scorer
    rows: Sequence[Row]

    def items(self, index: int) -> int:
        """Its learning tokens."""
        return self.rows[index].trained

    def loss(self, indices: Sequence[int]) -> Loss:
        """See `trl_loop.Objective`."""
        scores = self.scorer.score([self.rows[index] for index in indices])
        return Loss(-scores.logprobs_N.sum(), {"policy_entropy": float(scores.entropy_N.detach().mean())})
