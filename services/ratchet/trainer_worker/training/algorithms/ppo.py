"""PPO with a critic on the policy's trunk (arXiv:1707.06347), from logged trajectories.

Advantages per token by GAE over the trained tokens; the reward is paid on the last of them. The critic is stored with
the policy, so that the next job of the lineage starts from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ratchet.contract.snapshot import TrajectoryRow
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run
from ratchet.trainer_worker.training.learner.advantages import gae, whitened
from ratchet.trainer_worker.training.learner.losses import Critic
from ratchet.trainer_worker.training.learner.policy_gradient import begin, drive, fixed_rows, update_options
from ratchet.trainer_worker.training.learner.rows import PolicyData
from ratchet.trainer_worker.training.learner.start import FixedRows, StartScores
from ratchet.trainer_worker.training.learner.update import Update
from ratchet.trainer_worker.training.policy import TrainedPolicy

CRITIC = "critic.safetensors"
GAMMA, GAE_LAMBDA = 1.0, 1.0
"""Defaults: a single reward at the end, and a critic that is too young to bootstrap from."""
VALUE_COEFFICIENT, ENTROPY_COEFFICIENT = 0.5, 0.001


def train(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Outcome:
    """See `algorithms.base.Train`."""
    learning = begin(spec, policy, trajectories, run)
    critic = Critic(learning.scorer.hidden_size).to(learning.scorer.device)
    earlier = Path(spec.adapter, CRITIC) if spec.adapter is not None else None
    if earlier is not None and earlier.exists():  # the adapter's last job left it
        critic.load_state_dict(load_file(earlier))
    gamma = GAMMA if learning.hyper.gamma is None else learning.hyper.gamma
    gae_lambda = GAE_LAMBDA if learning.hyper.gae_lambda is None else learning.hyper.gae_lambda
    fixed, metrics = fixed_rows(
        learning, lambda start: with_advantages(learning.data, start, gamma, gae_lambda), critic
    )
    metrics["start_explained_variance"] = explained_variance(fixed)
    options = replace(
        update_options(learning), value_coefficient=VALUE_COEFFICIENT, entropy_coefficient=ENTROPY_COEFFICIENT
    )
    update = Update(learning.scorer, fixed, options, critic)
    outcome = drive(learning, update, metrics, {"gamma": gamma, "gae_lambda": gae_lambda})

    def save_critic(directory: Path) -> None:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in critic.state_dict().items()}
        save_file(weights, directory / CRITIC)

    return replace(outcome, extra_files=save_critic)


def with_advantages(data: PolicyData, start: StartScores, gamma: float, gae_lambda: float) -> FixedRows:
    """GAE of every row from the critic's first values, whitened over all tokens."""
    assert start.values is not None  # noqa: S101 - scored with a critic
    rewards = {one.trajectory_id: one.reward for one in data.scored}
    pairs = [
        gae(values.tolist(), rewards[row.trajectory_id], gamma, gae_lambda)
        for values, row in zip(start.values, data.rows, strict=True)
    ]
    return FixedRows(
        rows=data.rows,
        proximal=start.proximal,
        advantages=[torch.tensor(row) for row in whitened([advantages for advantages, _ in pairs])],
        reference=start.reference,
        values=start.values,
        returns=[torch.tensor(returns) for _, returns in pairs],
    )


def explained_variance(fixed: FixedRows) -> float:
    """1 - Var(returns - values) / Var(returns): what the critic knew before the update."""
    assert fixed.values is not None  # noqa: S101 - PPO has both
    assert fixed.returns is not None  # noqa: S101
    returns, values = torch.cat(list(fixed.returns)), torch.cat(list(fixed.values))
    spread = float(returns.var()) if len(returns) > 1 else 0.0
    return 1.0 - float((returns - values).var()) / spread if spread > 0 else 0.0
