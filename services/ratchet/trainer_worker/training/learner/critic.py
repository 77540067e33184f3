"""The critic of PPO: what the policy's hidden states tell of a reward beyond what the task's baseline tells.

A ridge regression in closed form on the job's own rows, so that it knows something at the first train step. It is
cross-fitted: the values of a trajectory come from a fit without any try at its task, and its baseline from the other
tries, so that no advantage is biased by its own reward. Every trajectory counts the same, however long it is.

Shapes: _N trained tokens, _H hidden, _D features.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.trainer_worker.training.learner.advantages import Scored, groups_of
from ratchet.trainer_worker.training.learner.rows import Row

FEATURES = 256
"""Wider hidden states are projected to so many dimensions."""
FOLDS = 5
LEAST_TASKS = 3
"""With fewer there is no fit: one without a task needs two others to choose its penalty."""
PENALTIES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 1e4)
"""Of the squared weights, for each trajectory; the last one leaves the baselines and the mean alone."""
FREE = 2
"""Columns that are not penalised: the last one, which is 1, and the one before, which tells who has a baseline."""
TINY = 1e-9
"""Keeps columns that never vary out of the fit."""


class Features:
    """Hidden states as the regression takes them: at most `FEATURES` wide, the same projection in every job."""

    def __init__(self, hidden_size: int) -> None:
        self._projection: Tensor | None = None
        if hidden_size > FEATURES:
            drawn = torch.randn(hidden_size, FEATURES, generator=torch.Generator().manual_seed(0))
            self._projection = drawn / math.sqrt(hidden_size)

    def __call__(self, hidden_NH: Tensor) -> Tensor:
        """[N, D] on the CPU."""
        hidden_NH = hidden_NH.detach().float()
        if self._projection is None:
            return hidden_NH.cpu()
        self._projection = self._projection.to(hidden_NH.device)
        return (hidden_NH @ self._projection).cpu()


@dataclass(frozen=True, slots=True)
class Values:
    """What the critic says."""

    rows: list[Tensor]
    """Of each row: the expected reward before each of its trained tokens."""
    explained_variance: float
    """1 - (mean squared error of the values) / (variance of the rewards), over trajectories; of one that no fit saw."""
    baseline_explained_variance: float
    """The same of the baselines alone."""


def fit_values(rows: Sequence[Row], features: Sequence[Tensor], scored: Sequence[Scored]) -> Values:
    """Values of all rows, from a regression of reward - baseline on `features`."""
    tokens = _Tokens.of(rows, scored)
    known = baselines_of(scored)
    # As a column the baseline is trusted as far as it deserves, being the mean of a few tries.
    own_N3 = torch.stack(
        [
            tokens.each({name: 0.0 if value is None else value for name, value in known.items()}),
            tokens.each({name: float(value is not None) for name, value in known.items()}),
            torch.ones_like(tokens.weight_N),
        ],
        1,
    )
    columns_ND = torch.cat([torch.cat(list(features)).double(), own_N3], 1)
    baseline_N, target_N = own_N3[:, 0], tokens.reward_N - own_N3[:, 0]
    if len({*tokens.folds.values()}) < LEAST_TASKS:
        # The baselines; where there is none, the mean of the other tasks.
        values: dict[str, float] = {}
        for own in scored:
            others = [other.reward for other in scored if other.task_key != own.task_key]
            mean = sum(others) / len(others) if others else 0.0
            baseline = known[own.trajectory_id]
            values[own.trajectory_id] = mean if baseline is None else baseline
        values_N = plain_N = tokens.each(values)
    else:
        values_N = tokens.bounded(baseline_N + _cross_fitted(columns_ND, target_N, tokens, PENALTIES))
        plain_N = tokens.bounded(baseline_N + _cross_fitted(columns_ND, target_N, tokens, PENALTIES[-1:]))
    return Values(
        rows=[part.float() for part in values_N.split([row.trained for row in rows])],
        explained_variance=tokens.explained(values_N),
        baseline_explained_variance=tokens.explained(plain_N),
    )


def baselines_of(scored: Sequence[Scored]) -> dict[str, float | None]:
    """What each trajectory's reward is expected to be, from its task alone and everything there but itself.

    The mean of the other tries, to which the task's stored baseline counts as one more; None without either.
    """
    expected: dict[str, float | None] = {}
    for members in groups_of(scored):
        for member in members:
            known = [other.reward for other in members if other is not member]
            known += [] if member.baseline is None else [member.baseline]
            expected[member.trajectory_id] = sum(known) / len(known) if known else None
    return expected


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What all tokens of a trajectory have in common, spread over the tokens of all rows."""

    rows: Sequence[Row]
    rewards: Mapping[str, float]
    folds: Mapping[str, int]
    """Tries at one task are never apart."""
    weight_N: Tensor
    """1 for each trajectory, in equal parts."""
    reward_N: Tensor
    fold_N: Tensor

    @classmethod
    def of(cls, rows: Sequence[Row], scored: Sequence[Scored]) -> _Tokens:
        """Of the trajectories that the rows belong to."""
        groups = sorted(groups_of(scored), key=lambda members: hashlib.sha256(members[0].task_key.encode()).digest())
        folds = {member.trajectory_id: place % FOLDS for place, members in enumerate(groups) for member in members}
        rewards = {trajectory.trajectory_id: trajectory.reward for trajectory in scored}
        length: dict[str, int] = {}
        for row in rows:
            length[row.trajectory_id] = length.get(row.trajectory_id, 0) + row.trained
        weight_N, reward_N, fold_N = (
            _spread(rows, values) for values in ({name: 1 / n for name, n in length.items()}, rewards, folds)
        )
        return cls(rows, rewards, folds, weight_N, reward_N, fold_N)

    def each(self, values: Mapping[str, float]) -> Tensor:
        """[N] of a value for each trajectory."""
        return _spread(self.rows, values)

    def bounded(self, values_N: Tensor) -> Tensor:
        """Within what the rewards of other folds are."""
        bounded_N = values_N.clone()
        for fold in {*self.folds.values()}:
            others = [reward for name, reward in self.rewards.items() if self.folds[name] != fold]
            bounded_N[self.fold_N == fold] = values_N[self.fold_N == fold].clamp(min(others), max(others))
        return bounded_N

    def explained(self, values_N: Tensor) -> float:
        """Share of the rewards' variance."""
        share_N = self.weight_N / self.weight_N.sum()
        spread = float((share_N * (self.reward_N - (share_N * self.reward_N).sum()) ** 2).sum())
        return 1.0 - float((share_N * (self.reward_N - values_N) ** 2).sum()) / spread if spread > 0 else 0.0


def _spread(rows: Sequence[Row], values: Mapping[str, float]) -> Tensor:
    of_rows = torch.tensor([values[row.trajectory_id] for row in rows], dtype=torch.float64)
    return of_rows.repeat_interleave(torch.tensor([row.trained for row in rows]))


@dataclass(frozen=True, slots=True)
class _Moments:
    """All that a ridge regression needs to know of some tokens. The last column is one everywhere."""

    squares_DD: Tensor
    products_D: Tensor
    mass: float
    """Trajectories."""

    def weights(self, penalty: float) -> Tensor:
        """The fit; each column is penalised in units of its own standard deviation here."""
        spread_D = self.squares_DD.diagonal() / self.mass - (self.squares_DD[-1] / self.mass) ** 2
        penalties_D = penalty * spread_D.clamp(min=0)
        penalties_D[-FREE:] = 0.0
        ridge_DD = (self.mass * (penalties_D + TINY)).diag()
        return torch.linalg.solve(self.squares_DD + ridge_DD, self.products_D)

    def error(self, weights_D: Tensor) -> float:
        """Squared error of a fit here, less that of no fit at all."""
        return float(weights_D @ self.squares_DD @ weights_D - 2 * weights_D @ self.products_D)


def _cross_fitted(columns_ND: Tensor, target_N: Tensor, tokens: _Tokens, penalties: Sequence[float]) -> Tensor:
    """Prediction of each token's target by a fit without its fold; the penalty is chosen without it as well."""
    predicted_N = torch.zeros_like(target_N)
    moments: dict[int, _Moments] = {}
    for fold in {*tokens.folds.values()}:
        inside_N = tokens.fold_N == fold
        weighted_ND = columns_ND[inside_N] * tokens.weight_N[inside_N, None]
        mass = float(tokens.weight_N[inside_N].sum())
        moments[fold] = _Moments(weighted_ND.T @ columns_ND[inside_N], weighted_ND.T @ target_N[inside_N], mass)
    for fold in moments:
        others = [moments[other] for other in moments if other != fold]
        errors = [0.0]
        if len(penalties) > 1:  # each part is predicted from the others
            apart = [(part, _sum([other for other in others if other is not part])) for part in others]
            errors = [sum(part.error(rest.weights(penalty)) for part, rest in apart) for penalty in penalties]
        fit_D = _sum(others).weights(penalties[errors.index(min(errors))])
        predicted_N[tokens.fold_N == fold] = columns_ND[tokens.fold_N == fold] @ fit_D
    return predicted_N


def _sum(parts: Sequence[_Moments]) -> _Moments:
    squares_DD = torch.stack([part.squares_DD for part in parts]).sum(0)
    return _Moments(squares_DD, torch.stack([part.products_D for part in parts]).sum(0), sum(p.mass for p in parts))
