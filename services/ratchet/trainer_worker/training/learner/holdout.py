"""Tasks that a training does not learn from, and what their tries show of it: sft and policy gradients.

All tries of a task are on one side. What is compared is the policy at the end with the policy at the start of the job,
on the same tries, with the task as the unit of the interval: tries of one task are not independent.

Shapes: _S tries.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.core.contract.training import EvaluationResults
from ratchet.core.rules.intervals import mean_interval
from ratchet.core.rules.training_options import held_out_tasks
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.learner.advantages import SAME, Scored
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.pairs import check_split, rows_by_key, scores_of
from ratchet.trainer_worker.training.learner.preferences import never, score_all
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.learner.start import behavior_logprobs, effective_sample_size
from ratchet.trainer_worker.training.loop import EVALUATIONS

LEAST_ESS = 0.5
"""Least effective sample size, as a share of the tries, that an improvement is estimated from: below it few tries stand
for all, and 95 % intervals miss the truth more than one time in ten (mostly by saying too little)."""
LEAST_TASKS = 5
"""Fewest tasks whose tries differ in reward: the others say nothing, and an interval of zeros looks like certainty."""


def hold_out(spec: JobSpec, task_keys: Mapping[str, str]) -> frozenset[str]:
    """Ids of the tries to hold out, of those with their task. Raises `DataUnusable` when one side would be empty."""
    held = held_out_tasks([*task_keys.values()], spec.holdout, spec.config.hyperparameters.seed or 0)
    apart = [name for name, key in task_keys.items() if key in held]
    check_split(spec.holdout, range(len(task_keys) - len(apart)), range(len(apart)), "trajectories")
    return frozenset(apart)


@dataclass(frozen=True, slots=True)
class Try:
    """One held-out try."""

    task_key: str
    reward: float
    rows: Sequence[Row]

    @property
    def trained(self) -> int:
        """Its tokens that would have learnt."""
        return sum(row.trained for row in self.rows)


Judge = Callable[[Sequence[Try], Tensor, Tensor], EvaluationResults]
"""(tries, their log-probabilities [S] under the policy at the start, the same now) -> what they show."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Tries that are held out, and what they were at the start."""

    tries: Sequence[Try]
    scorer: Scorer
    start_S: Tensor
    judge: Judge
    eval_steps: int | None

    @classmethod
    def begin(
        cls,
        spec: JobSpec,
        scorer: Scorer,
        rows: Sequence[Row],
        scored: Collection[Scored],
        judge: Judge,
        stop_requested: Callable[[], bool],
    ) -> HeldOut:
        """Score the `rows` before the first train step, also of a training that is resumed: the weights of its
        checkpoint are not loaded yet. Raises `StopRequested`.
        """
        of_try = rows_by_key(rows)
        tries = [
            Try(tried.task_key, tried.reward, of_try[tried.trajectory_id])
            for tried in scored
            if tried.trajectory_id in of_try
        ]
        start_S = score_all(scorer, [tried.rows for tried in tries], stop_requested)
        return cls(tries, scorer, start_S, judge, spec.loop.eval_steps)

    def results(self, stop_requested: Callable[[], bool] = never) -> EvaluationResults:
        """What the tries show of the policy as it is now. Raises `StopRequested`."""
        now_S = score_all(self.scorer, [tried.rows for tried in self.tries], stop_requested)
        return self.judge(self.tries, self.start_S, now_S)

    def scores(self) -> Mapping[str, float]:
        """The same, as figures of a train step."""
        return scores_of(self.results())

    def scores_at(self, done: int, total: int) -> Mapping[str, float]:
        """The scores after train step `done`, where an evaluation is due."""
        is_due = done == total or done % (self.eval_steps or math.ceil(total / EVALUATIONS)) == 0
        return self.scores() if is_due else {}


def likelihood_gained(tries: Sequence[Try], start_S: Tensor, now_S: Tensor) -> EvaluationResults:
    """By how much the loss per token fell: the mean over tasks, with its 95 % interval, where tasks differ in that."""
    tokens = [tried.trained for tried in tries]
    scores = {
        "holdout_tasks": float(len(_by_task(tries))),
        "holdout_tries": float(len(tries)),
        "holdout_loss_before": -float(start_S.sum()) / sum(tokens),
        "holdout_loss": -float(now_S.sum()) / sum(tokens),
    }
    gains = (now_S - start_S).tolist()
    falls = [
        sum(gains[index] for index in own) / sum(tokens[index] for index in own) for own in _by_task(tries).values()
    ]
    return _with_improvement(scores, falls)


def reward_gained(tries: Sequence[Try], start_S: Tensor, now_S: Tensor) -> EvaluationResults:
    """An off-policy estimate of how much more reward the policy gets than the one at the start; none where the tries
    cannot bear it (`LEAST_ESS`, `LEAST_TASKS`).

    Every try counts by how much likelier the policy makes its tokens than the policy that drew them, over the mean of
    all tries (self-normalised importance sampling, Owen 2013, section 9.2), less the same for the start, times its
    reward above that of its task's other tries (of all others, where it is alone). That baseline does not depend on
    the try, so it shifts no expectation. The tokens are those that would have learnt, within the longest row.
    """
    drawn_S = torch.stack([behavior_logprobs(tried.rows).double().sum() for tried in tries])
    ratios_S = now_S.double() - drawn_S
    rewards = [tried.reward for tried in tries]
    ess = effective_sample_size(ratios_S.tolist())
    scores = {
        "holdout_tasks": float(len(_by_task(tries))),
        "holdout_tries": float(len(tries)),
        "holdout_reward_logged": statistics.fmean(rewards),
        "holdout_ess": ess,
    }
    gained_S = _normalised(ratios_S) - _normalised(start_S.double() - drawn_S)
    above = _above_others(tries)
    tasks = list(_by_task(tries).values())
    telling = sum(any(abs(above[index]) > SAME for index in own) for own in tasks)
    if ess < LEAST_ESS or telling < LEAST_TASKS:
        return EvaluationResults(benchmark_scores=scores)
    products = [gain * value for gain, value in zip(gained_S.tolist(), above, strict=True)]
    return _with_improvement(scores, [statistics.fmean(products[index] for index in own) for own in tasks])


def _normalised(log_weights_S: Tensor) -> Tensor:
    """Weights whose mean is 1."""
    return torch.softmax(log_weights_S, 0) * len(log_weights_S)


def _above_others(tries: Sequence[Try]) -> list[float]:
    """The reward of each try less the mean of its task's other tries; where it is alone, of all other tries."""
    above = [0.0] * len(tries)
    everything = range(len(tries))
    for own in _by_task(tries).values():
        for index in own:
            others = [tries[other].reward for other in (own if len(own) > 1 else everything) if other != index]
            above[index] = tries[index].reward - statistics.fmean(others) if others else 0.0
    return above


def _by_task(tries: Sequence[Try]) -> Mapping[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, tried in enumerate(tries):
        groups[tried.task_key].append(index)
    return groups


def _with_improvement(scores: dict[str, float], of_tasks: Sequence[float]) -> EvaluationResults:
    """The mean over tasks, with its 95 % interval: without one, nothing is claimed."""
    mean = statistics.fmean(of_tasks)
    if len(of_tasks) < 2 or (interval := mean_interval(mean, statistics.variance(of_tasks), len(of_tasks))) is None:
        return EvaluationResults(benchmark_scores=scores)
    low, high = interval
    scores |= {"improvement_low": low, "improvement_high": high}
    return EvaluationResults(benchmark_scores=scores, improvement_over_baseline=mean)
