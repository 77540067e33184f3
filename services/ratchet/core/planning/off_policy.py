"""What a candidate's selector would have earned on the plans that stable made, from stable's log.

The estimand is the mean reward of a decision (`rewards.decision_reward` of its sub-task by itself), over the decisions
that stable met: the plans are stable's, and which sub-tasks were reached is as stable left it. A worker that was drawn
and whose call did not fit into the budget counts as a failure that cost nothing; cancelled sub-tasks are left out. Each
decision has its own weight, because a product over the sub-tasks of a workflow is 0 or huge after a few of them. Of a
candidate that plans otherwise, or that reaches more by failing less, the canary alone judges that.

Estimators: inverse propensity (IPS), self-normalised (SNIPS, Swaminathan 2015) and doubly robust (Dudik 2011), the last
with an outcome model that is fitted on the workflows of other subjects (cross-fitting, Chernozhukov 2018). Intervals
are those of a mean over subjects (user, else session, else workflow), by linearisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ratchet.core.contract.workflows import WorkflowExecution
from ratchet.core.planning.base import Planner
from ratchet.core.planning.learned import LearnedPlanner, execution_digest
from ratchet.core.planning.logged import Decision, decisions
from ratchet.core.planning.network import WORKER_FEATURES, worker_features
from ratchet.core.planning.rewards import run_reward
from ratchet.core.rules.intervals import mean_interval

Floats = NDArray[Any]
"""Of float64."""

LEAST_EFFECTIVE = 100.0
"""Effective sample size below which nothing is judged."""
LEAST_WEIGHT = 0.6
"""Mean weight below which nothing is judged. It is 1 but for chance, by some .1 where the effective sample size is 100:
much less means that what the candidate would choose was hardly drawn, and small weights that are all alike pass for a
large sample."""
MOST_OF_ONE = 0.05
"""Share of all weight that one execution may have."""
MOST_UNSUPPORTED = 0.01
"""Share of the candidate's choices that stable could not have made."""
FOLDS = 5
RIDGE = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean reward of a decision, and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the log says of a candidate. Without estimates where it refuses to judge."""

    executions: int
    """That were used."""
    excluded: int
    """That the candidate had learned from."""
    decisions: int
    subjects: int
    effective_sample_size: float
    mean_weight: float
    """1 but for chance."""
    largest_share: float
    """Of all weight, that of the execution with the most."""
    unsupported_share: float
    """Of the candidate's probability, what it gives to workers that stable gave none."""
    refusal: str | None
    """Why it cannot be judged, in words."""
    stable: Estimate | None = None
    """What was earned: the mean reward of the log."""
    ips: Estimate | None = None
    snips: Estimate | None = None
    doubly_robust: Estimate | None = None
    difference: Estimate | None = None
    """Doubly robust, candidate less stable: below 0 with all of its interval, the candidate is worse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Decisions as arrays: `_D` decisions, `_W` workers (the most that any decision has), `_P` features."""

    weights_D: Floats
    """Candidate's probability of what was chosen, over the logged one."""
    rewards_D: Floats
    candidate_DW: Floats
    """0 where a decision has no such worker."""
    stable_DW: Floats
    features_DWP: Floats
    chosen_D: NDArray[np.int64]
    workflow_D: NDArray[np.int64]
    subject_D: NDArray[np.int64]
    fold_D: NDArray[np.int64]


def judge(rows: Sequence[WorkflowExecution], candidate: LearnedPlanner) -> Judgement:
    """`rows`: stable's executions; those that the candidate has learned from are left out."""
    used = [row for row in rows if execution_digest(row.workflow_id) not in candidate.trained_on]
    log = read_log(used, candidate)
    return judge_log(log, executions=len(used), excluded=len(rows) - len(used))


def read_log(rows: Sequence[WorkflowExecution], candidate: Planner) -> Log:
    """All decisions of executions, with what the candidate would have chosen by which chance."""
    subjects: dict[str, int] = {}
    taken: list[tuple[int, int, int, Decision]] = []
    for number, row in enumerate(rows):
        subject = subjects.setdefault(subject_of(row), len(subjects))
        fold = crc32(subject_of(row).encode()) % FOLDS
        taken += [(number, subject, fold, decision) for decision in decisions(row)]
    width = max((len(decision.choice.workers) for *_, decision in taken), default=1)
    candidate_DW, stable_DW = np.zeros((len(taken), width)), np.zeros((len(taken), width))
    features_DWP = np.zeros((len(taken), width, outcome_width(candidate.task_types)), np.float32)
    for place, (*_, decision) in enumerate(taken):
        count = len(decision.choice.workers)
        candidate_DW[place, :count] = candidate.propensities(decision.choice)
        stable_DW[place, :count] = [option.propensity for option in decision.run.options]
        features_DWP[place, :count] = outcome_features(decision, candidate.task_types)
    chosen_D = np.array([decision.chosen for *_, decision in taken], np.int64)
    propensity_D = np.array([decision.propensity for *_, decision in taken])
    return Log(
        weights_D=candidate_DW[np.arange(len(taken)), chosen_D] / propensity_D,
        rewards_D=np.array([run_reward(decision.run) for *_, decision in taken]),
        candidate_DW=candidate_DW,
        stable_DW=stable_DW,
        features_DWP=features_DWP,
        chosen_D=chosen_D,
        workflow_D=np.array([number for number, *_ in taken], np.int64),
        subject_D=np.array([subject for _, subject, *_ in taken], np.int64),
        fold_D=np.array([fold for _, _, fold, _ in taken], np.int64),
    )


def subject_of(row: WorkflowExecution) -> str:
    """Whose executions belong together."""
    return f"u{row.user_ref}" if row.user_ref else f"s{row.session_id}" if row.session_id else row.workflow_id


def judge_log(log: Log, executions: int, excluded: int = 0) -> Judgement:
    """Estimates, or why there are none."""
    total = float(log.weights_D.sum())
    squares = float((log.weights_D**2).sum())
    by_workflow = _sums(log.weights_D, log.workflow_D)
    facts: Mapping[str, Any] = {
        "executions": executions,
        "excluded": excluded,
        "decisions": len(log.rewards_D),
        "subjects": len(np.unique(log.subject_D)),
        "effective_sample_size": total**2 / squares if squares else 0.0,
        "mean_weight": total / max(1, len(log.rewards_D)),
        "largest_share": float(by_workflow.max() / total) if total else 0.0,
        "unsupported_share": float((log.candidate_DW * (log.stable_DW <= 0)).sum() / max(1, len(log.rewards_D))),
    }
    bare = Judgement(**facts, refusal=None)
    refusal = _refusal(bare)
    if refusal:
        return Judgement(**facts, refusal=refusal)
    ones_D = np.ones(len(log.rewards_D))
    robust_D = doubly_robust_terms(log)
    return Judgement(
        **facts,
        refusal=None,
        stable=_ratio(log.rewards_D, ones_D, log.subject_D),
        ips=_ratio(log.weights_D * log.rewards_D, ones_D, log.subject_D),
        snips=_ratio(log.weights_D * log.rewards_D, log.weights_D, log.subject_D),
        doubly_robust=_ratio(robust_D, ones_D, log.subject_D),
        difference=_ratio(robust_D - log.rewards_D, ones_D, log.subject_D),
    )


def _refusal(facts: Judgement) -> str | None:
    if facts.effective_sample_size < LEAST_EFFECTIVE:
        return (
            f"the log is worth {facts.effective_sample_size:.0f} decisions of the candidate's; "
            f"{LEAST_EFFECTIVE:.0f} are needed: collect more executions"
        )
    if facts.mean_weight < LEAST_WEIGHT:
        return (
            f"the log lacks what the candidate would choose: the mean weight is {facts.mean_weight:.2f}; "
            f"{LEAST_WEIGHT:g} is needed: collect more executions"
        )
    if facts.subjects < 2:
        return "all executions belong to one subject, so that no interval can be given"
    if facts.largest_share > MOST_OF_ONE:
        return f"one execution has {facts.largest_share:.0%} of the weight; {MOST_OF_ONE:.0%} is the most"
    if facts.unsupported_share > MOST_UNSUPPORTED:
        return (
            f"{facts.unsupported_share:.1%} of the candidate's choices are workers that stable never chooses; "
            f"{MOST_UNSUPPORTED:.0%} is the most"
        )
    return None


def doubly_robust_terms(log: Log) -> Floats:
    """[D]: what the model expects of the candidate's choices, plus the weighted error of what was observed."""
    terms_D = np.zeros(len(log.rewards_D))
    places = np.arange(len(log.rewards_D))
    for fold in range(FOLDS):
        held = log.fold_D == fold
        if not held.any():
            continue
        coefficients_P = _ridge(log.features_DWP[places, log.chosen_D][~held], log.rewards_D[~held])
        expected_DW = log.features_DWP[held] @ coefficients_P
        observed = expected_DW[np.arange(int(held.sum())), log.chosen_D[held]]
        terms_D[held] = (log.candidate_DW[held] * expected_DW).sum(axis=1)
        terms_D[held] += log.weights_D[held] * (log.rewards_D[held] - observed)
    return terms_D


def outcome_width(task_types: Sequence[str]) -> int:
    """Features of the outcome model."""
    return WORKER_FEATURES * (len(task_types) + 1) + 2


def outcome_features(decision: Decision, task_types: Sequence[str]) -> Floats:
    """[W, P]: the worker's figures by task type, complexity, and 1. The model need not be right, only not fitted on
    what it is used for.
    """
    workers = np.asarray(worker_features(decision.choice), np.float64)
    task = decision.choice.sub_task
    kind = task_types.index(task.task_type) if task.task_type in task_types else len(task_types)
    width = workers.shape[1]
    features = np.zeros((len(workers), outcome_width(task_types)))
    features[:, kind * width : (kind + 1) * width] = workers
    features[:, -2] = task.complexity
    features[:, -1] = 1.0
    return features


def _ridge(features: Floats, rewards: Floats) -> Floats:
    if not len(rewards):
        return np.zeros(features.shape[1])
    gram = features.T @ features + RIDGE * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ rewards)


def _ratio(values_D: Floats, counts_D: Floats, subject_D: NDArray[np.int64]) -> Estimate:
    """Sum of values over sum of counts, with subjects as the independent units (the delta method)."""
    values_S, counts_S = _sums(values_D, subject_D), _sums(counts_D, subject_D)
    mean = float(values_S.sum() / counts_S.sum())
    influence_S = (values_S - mean * counts_S) / counts_S.mean()
    variance = float((influence_S**2).sum() / max(1, len(influence_S) - 1))
    # Without spread, a planner that decides as the logged one did is as good as that.
    alike = (mean, mean) if len(influence_S) > 1 else (-math.inf, math.inf)
    low, high = mean_interval(mean, variance, len(influence_S)) or alike
    return Estimate(mean, low, high)


def _sums(values_D: Floats, group_D: NDArray[np.int64]) -> Floats:
    """Sums by group, of the groups that there are."""
    _, places = np.unique(group_D, return_inverse=True)
    return np.bincount(places, weights=values_D, minlength=1)
