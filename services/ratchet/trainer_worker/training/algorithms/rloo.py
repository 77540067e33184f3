"""RLOO: leave-one-out advantages (arXiv:2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.learner.advantages import RLOO
from ratchet.trainer_worker.training.learner.policy_gradient import begin, train_groups
from ratchet.trainer_worker.training.policy import TrainedPolicy


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    return train_groups(begin(spec, policy, trajectories, run), RLOO)
