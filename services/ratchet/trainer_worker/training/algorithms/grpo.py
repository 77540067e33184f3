"""GRPO: advantages standardised within the group (arXiv:2402.03300), or not (Dr. GRPO, arXiv:2503.20783).

Dr. GRPO is `scale_rewards: none` with `loss_normalization: constant`; GSPO is `ratio: sequence`; CISPO is
`surrogate: cispo` with `loss_normalization: token`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.learner.advantages import GRPO, REINFORCE
from ratchet.trainer_worker.training.learner.policy_gradient import begin, train_groups
from ratchet.trainer_worker.training.policy import TrainedPolicy


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    scaled = spec.config.hyperparameters.scale_rewards or "group"
    estimator = GRPO if scaled == "group" else REINFORCE
    return train_groups(begin(spec, policy, trajectories, run), estimator, {"scale_rewards": scaled})
