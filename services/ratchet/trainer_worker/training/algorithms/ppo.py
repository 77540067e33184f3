"""PPO (arXiv:1707.06347) from logged trajectories, with a critic that is fitted to them.

Advantages per token by GAE over the trained tokens; the reward is paid on the last of them. The critic is a regression
on the policy's hidden states (`learner.critic`): it needs no train steps, and no job before this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.errors import EqualRewards
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.learner.advantages import SAME, gae, groups_of, is_flat, whitened
from ratchet.trainer_worker.training.learner.critic import Features, Values, fit_values
from ratchet.trainer_worker.training.learner.policy_gradient import begin, drive, fixed_rows, update_options
from ratchet.trainer_worker.training.learner.rows import PolicyData
from ratchet.trainer_worker.training.learner.start import FixedRows, StartScores
from ratchet.trainer_worker.training.learner.update import Update
from ratchet.trainer_worker.training.policy import TrainedPolicy

GAMMA, GAE_LAMBDA = 1.0, 1.0
"""Defaults: a single reward at the end, and advantages that no error of the critic biases."""
ENTROPY_COEFFICIENT = 0.001
"""Default weight of the policy's entropy."""


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    learning = begin(spec, policy, trajectories, run)
    groups = groups_of(learning.data.scored)
    flat = {member.trajectory_id for members in groups if is_flat(members) for member in members}
    learns = [row.trajectory_id not in flat for row in learning.data.rows]
    rewards = [scored.reward for scored in learning.data.scored if scored.trajectory_id not in flat]
    if not any(learns) or max(rewards) - min(rewards) < SAME:
        raise EqualRewards(len(groups))
    gamma = GAMMA if learning.hyper.gamma is None else learning.hyper.gamma
    gae_lambda = GAE_LAMBDA if learning.hyper.gae_lambda is None else learning.hyper.gae_lambda
    counts = {
        "groups": float(len(groups)),
        "zero_variance_groups": float(sum(map(is_flat, groups))),
        "singleton_groups": float(sum(len(members) == 1 for members in groups)),
    }

    def fix(start: StartScores) -> FixedRows:
        values = fit_values(learning.data.rows, start.features, learning.data.scored)
        fixed = with_advantages(learning.data, start, values, learns, (gamma, gae_lambda))
        explained = {
            "explained_variance": values.explained_variance,
            "baseline_explained_variance": values.baseline_explained_variance,
        }
        return replace(fixed, figures=counts | explained)

    fixed = fixed_rows(learning, fix, Features(learning.scorer.hidden_size), learns=learns)
    entropy = ENTROPY_COEFFICIENT if learning.hyper.entropy_coefficient is None else learning.hyper.entropy_coefficient
    options = replace(update_options(learning), entropy_coefficient=entropy)
    update = Update(learning.scorer, fixed, options)
    return drive(learning, update, {"gamma": gamma, "gae_lambda": gae_lambda})


def with_advantages(
    data: PolicyData, start: StartScores, values: Values, learns: Sequence[bool], discounts: tuple[float, float]
) -> FixedRows:
    """GAE of every row that learns, whitened over all their tokens. `discounts`: gamma and lambda."""
    rewards = {scored.trajectory_id: scored.reward for scored in data.scored}
    kept = [index for index, learning in enumerate(learns) if learning]
    advantages = [
        gae(values.rows[index].tolist(), rewards[data.rows[index].trajectory_id], *discounts) for index in kept
    ]
    return FixedRows(
        rows=[data.rows[index] for index in kept],
        proximal=[start.proximal[index] for index in kept],
        advantages=[torch.tensor(row) for row in whitened(advantages)],
        entropies=[start.entropies[index] for index in kept],
        reference=[start.reference[index] for index in kept],
    )
