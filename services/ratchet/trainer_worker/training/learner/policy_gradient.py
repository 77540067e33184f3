"""From a snapshot to an updated policy: what RLOO, GRPO, REINFORCE and PPO have in common."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from ratchet.bus.message import JsonObject
from ratchet.contract.snapshot import TrajectoryRow
from ratchet.contract.training import Hyperparameters
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run, Step
from ratchet.trainer_worker.training.learner.advantages import Estimator, Shaping, trajectory_advantages
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import Critic, Objective
from ratchet.trainer_worker.training.learner.rows import PolicyData, policy_data
from ratchet.trainer_worker.training.learner.start import (
    MIN_ESS,
    FixedRows,
    StartScores,
    check_off_policy,
    load_fixed,
    score_start,
)
from ratchet.trainer_worker.training.learner.update import Update, UpdateOptions
from ratchet.trainer_worker.training.policy import TrainedPolicy

ADAPTER_LEARNING_RATE, FULL_LEARNING_RATE = 5e-5, 1e-6
"""Defaults of the policy-gradient algorithms."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Everything that one policy-gradient job works with."""

    spec: JobSpec
    policy: TrainedPolicy
    run: Run
    data: PolicyData
    scorer: Scorer

    @property
    def hyper(self) -> Hyperparameters:
        """What the job asks for."""
        return self.spec.config.hyperparameters


def begin(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Learning:
    """Make rows and a scorer. Raises `DataUnusable` when there is nothing to learn from."""
    config = spec.config
    mirrored = config.dataset.reward_transform == "negate"
    data = policy_data(trajectories, spec.policy_version, config.hyperparameters.max_length, mirrored=mirrored)
    return Learning(spec, policy, run, data, Scorer(policy.model, bf16=policy.bf16))


def train_groups(learning: Learning, estimator: Estimator) -> Outcome:
    """Train on one advantage per trajectory, estimated within the groups of tries at the same task."""
    hyper = learning.hyper
    scale = hyper.negative_advantage_scale
    shaping = Shaping(floor=hyper.advantage_floor, negative_scale=1.0 if scale is None else scale)
    estimated = trajectory_advantages(learning.data.scored, estimator, shaping)
    rows = [row for row in learning.data.rows if row.trajectory_id in estimated.values]
    if not rows:
        raise DataUnusable(f"all {estimated.groups} groups of tries have equal rewards: there is nothing to tell apart")
    learning = replace(learning, data=replace(learning.data, rows=rows))

    def fix(start: StartScores) -> FixedRows:
        pairs = zip(rows, start.proximal, strict=True)
        advantages = [torch.full_like(logprobs, estimated.values[row.trajectory_id]) for row, logprobs in pairs]
        return FixedRows(rows, start.proximal, advantages, start.reference)

    fixed, metrics = fixed_rows(learning, fix)
    metrics |= {"groups": estimated.groups, "zero_variance_groups": estimated.zero_variance_groups}
    metrics |= {"singleton_groups": estimated.singletons}
    update = Update(learning.scorer, fixed, update_options(learning))
    return drive(
        learning,
        update,
        metrics,
        {"advantage_floor": shaping.floor, "negative_advantage_scale": shaping.negative_scale},
    )


def fixed_rows(
    learning: Learning, fix: Callable[[StartScores], FixedRows], critic: Critic | None = None
) -> tuple[FixedRows, dict[str, float]]:
    """What is fixed at the start: from the checkpoint that is resumed, else by scoring all rows now.

    Checks that the data is close enough to the policy, and returns how close as metrics.
    """
    rows, run = learning.data.rows, learning.run
    if run.resume is not None:
        return load_fixed(run.resume.directory, rows), {}
    objective = objective_of(learning.hyper)
    reference = objective.kl_beta > 0
    start = score_start(learning.scorer, rows, reference=reference, fresh=learning.policy.fresh, critic=critic)
    ess = check_off_policy(rows, start, objective.rejection_window)
    return fix(start), {"start_ess": ess, "start_entropy": start.entropy}


def data_metrics(data: PolicyData) -> dict[str, float]:
    """Counts of what the rows were made of."""
    counts = data.counts
    return {
        "rows": len(data.rows),
        "forks": counts.forks,
        "orphan_calls": counts.orphans,
        "untrainable_calls": sum(counts.untrainable.values()),
        "stale_trajectories": data.stale,
        "truncated_rows": counts.truncated,
    }


def objective_of(hyper: Hyperparameters) -> Objective:
    """The objective that a job asks for."""
    plain = Objective()
    low = plain.clip_low if hyper.clip_epsilon is None else hyper.clip_epsilon
    high = plain.clip_high if hyper.clip_epsilon is None else hyper.clip_epsilon
    window = hyper.rejection_window
    return Objective(
        clip_low=low,
        clip_high=high if hyper.clip_epsilon_high is None else hyper.clip_epsilon_high,
        importance_cap=plain.importance_cap if hyper.importance_cap is None else hyper.importance_cap,
        rejection_window=plain.rejection_window if window is None else (window[0], window[1]),
        kl_beta=plain.kl_beta if hyper.kl_beta is None else hyper.kl_beta,
    )


def update_options(learning: Learning) -> UpdateOptions:
    """How a job asks to go through the rows; absent members have their defaults."""
    hyper = learning.hyper
    plain = UpdateOptions(
        learning_rate=FULL_LEARNING_RATE if hyper.full_finetune else ADAPTER_LEARNING_RATE,
        batch_size=learning.spec.batch_size,
    )
    longest = max(row.trained for row in learning.data.rows)
    return UpdateOptions(
        learning_rate=hyper.learning_rate or plain.learning_rate,
        batch_size=plain.batch_size * (hyper.gradient_accumulation or 1),
        epochs=hyper.epochs or plain.epochs,
        max_steps=hyper.max_steps,
        accumulation=hyper.gradient_accumulation or plain.accumulation,
        max_grad_norm=hyper.max_grad_norm or plain.max_grad_norm,
        ramp_steps=plain.ramp_steps if hyper.warmup_steps is None else hyper.warmup_steps,
        seed=hyper.seed or 0,
        normalization=hyper.loss_normalization or plain.normalization,
        constant_tokens=hyper.max_length or longest,
        objective=objective_of(hyper),
    )


def effective(learning: Learning, options: UpdateOptions) -> JsonObject:
    """The hyperparameters that all policy-gradient algorithms share, read from what trains."""
    objective = options.objective
    return {
        **learning.policy.effective(),
        "learning_rate": options.learning_rate,
        "batch_size": options.batch_size // options.accumulation,
        "gradient_accumulation": options.accumulation,
        "epochs": options.epochs,
        "max_steps": options.max_steps,
        "warmup_steps": options.ramp_steps,
        "max_grad_norm": options.max_grad_norm,
        "max_length": learning.hyper.max_length,
        "seed": options.seed,
        "loss_normalization": options.normalization,
        "clip_epsilon": objective.clip_low,
        "clip_epsilon_high": objective.clip_high,
        "importance_cap": objective.importance_cap,
        "rejection_window": list(objective.rejection_window) if objective.rejection_window else None,
        "kl_beta": objective.kl_beta,
        "bf16": learning.policy.bf16,
    }


def drive(learning: Learning, update: Update, metrics: dict[str, float], own: JsonObject) -> Outcome:
    """Run the train steps: report, save when due, stop when asked or when the data no longer tells enough.

    `own`: the effective hyperparameters that only this algorithm has.
    """
    data, run = learning.data, learning.run
    if run.resume is not None:
        update.load(run.resume.directory)
    learnt = {row.trajectory_id for row in data.rows}
    rewards = [one.reward for one in data.scored]
    constant = {"reward_mean": statistics.fmean(rewards), "reward_std": statistics.pstdev(rewards)}
    run.started(len(learnt), update.total)
    total_epochs = update.epoch_of(update.total)
    last: dict[str, float] = {}
    while update.done < update.total:
        if run.stop_requested():
            run.save(update.done, update.save)
            return Outcome(samples=len(learnt), stopped_at=update.done)
        last = update.train_step()
        epoch = update.epoch_of(update.done)
        run.stepped(Step(update.done, update.total, epoch, total_epochs, last | constant))
        if update.done % update.steps_per_epoch == 0 and update.epoch_ess() < MIN_ESS:
            metrics["stopped_early_at_ess"] = update.epoch_ess()
            break
        if run.checkpoint_due(update.done):
            run.save(update.done, update.save)
    return Outcome(
        samples=len(learnt),
        metrics=constant | data_metrics(data) | metrics | last,
        final_reward=constant["reward_mean"],
        probe_prompt=data.prompt,
        effective=effective(learning, update.options) | own,
    )
