"""From a snapshot to an updated policy: what RLOO, GRPO, REINFORCE and PPO have in common."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import torch

from ratchet.bus.message import JsonObject
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import HealthStop, Hyperparameters
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import BOTH, IMPORTANCE, NONE, REJECTION, SEQUENCE
from ratchet.trainer_worker.errors import DataUnusable, EqualRewards, StopRequested, Unhealthy
from ratchet.trainer_worker.job import JobSpec
from ratchet.trainer_worker.training.algorithms.base import Outcome, Run, TrainStep
from ratchet.trainer_worker.training.learner.advantages import Estimator, Shaping, trajectory_advantages
from ratchet.trainer_worker.training.learner.critic import Features
from ratchet.trainer_worker.training.learner.health import Drift, Health, Limits, asked_limits, described
from ratchet.trainer_worker.training.learner.holdout import HeldOut, hold_out, reward_gained
from ratchet.trainer_worker.training.learner.last_healthy import LastHealthy
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.losses import CISPO, Objective
from ratchet.trainer_worker.training.learner.masks import UNMASKABLE, Masks
from ratchet.trainer_worker.training.learner.optimizer import ADAM_BETAS, FirstGradients
from ratchet.trainer_worker.training.learner.rows import PolicyData, policy_data
from ratchet.trainer_worker.training.learner.start import (
    FixedRows,
    StartScores,
    check_off_policy,
    load_fixed,
    score_start,
)
from ratchet.trainer_worker.training.learner.update import Measured, Update, UpdateOptions
from ratchet.trainer_worker.training.policy import TrainedPolicy

SEQUENCE_CLIP = (3e-4, 4e-4)
"""Default clip of a row's ratio (arXiv:2507.18071, section 5.1): it varies far less than a token's."""
CISPO_HIGH = 4.0
"""Default of CISPO, whose weights have no lower bound: at most 5, as in arXiv:2510.13786."""
CORRECTIONS = {(True, True): BOTH, (True, False): IMPORTANCE, (False, True): REJECTION, (False, False): NONE}
"""By whether weights are capped, and whether rows are rejected."""
REFERENCE_SAMPLE = 64
"""Rows whose KL to the reference is measured where the objective does not ask for it."""
HEALTH = "health.json"
"""In a checkpoint."""


@dataclass(frozen=True, slots=True)
class Learning:
    """Everything that one policy-gradient job works with."""

    spec: JobSpec
    policy: TrainedPolicy
    run: Run
    data: PolicyData
    scorer: Scorer
    held: HeldOut | None = None
    """What is held out; `data` is without it."""

    @property
    def hyper(self) -> Hyperparameters:
        """What the job asks for."""
        return self.spec.config.hyperparameters


def begin(spec: JobSpec, policy: TrainedPolicy, trajectories: Sequence[TrajectoryRow], run: Run) -> Learning:
    """Make rows and a scorer. Raises `DataUnusable` when there is nothing to learn from."""
    config = spec.config
    mirrored = config.dataset.reward_transform == "negate"
    asked = config.hyperparameters.pass_tokens
    scorer = Scorer(policy.model, bf16=policy.bf16, pass_tokens=asked, ranks=policy.ranks)
    with closing(Masks(policy.tokenizer, spec.base, scorer.vocabulary)) as masks:
        data = policy_data(
            trajectories,
            config.hyperparameters.max_length,
            mirrored=mirrored,
            allowed_of=masks.allowed,
            vocabulary=scorer.vocabulary,
        )
    if not spec.holdout:
        return Learning(spec, policy, run, data, scorer)
    learnt = {row.trajectory_id for row in data.rows}
    apart = hold_out(
        spec, {tried.trajectory_id: tried.task_key for tried in data.scored if tried.trajectory_id in learnt}
    )
    tasks = {tried.task_key for tried in data.scored if tried.trajectory_id in apart}
    held_rows = [row for row in data.rows if row.trajectory_id in apart]
    held = HeldOut.begin(spec, scorer, held_rows, data.scored, reward_gained, run.stop_requested)
    rows = [row for row in data.rows if row.trajectory_id not in apart]
    scored = [tried for tried in data.scored if tried.task_key not in tasks]
    return Learning(spec, policy, run, replace(data, rows=rows, scored=scored), scorer, held)


def train_groups(learning: Learning, estimator: Estimator, own: JsonObject | None = None) -> Outcome:
    """Train on one advantage per trajectory, estimated within the groups of tries at the same task.

    `own`: the effective hyperparameters that only this algorithm has.
    """
    hyper = learning.hyper
    scale = hyper.negative_advantage_scale
    shaping = Shaping(floor=hyper.advantage_floor, negative_scale=1.0 if scale is None else scale)
    estimated = trajectory_advantages(learning.data.scored, estimator, shaping)
    rows = [row for row in learning.data.rows if row.trajectory_id in estimated.values]
    if not rows:
        raise EqualRewards(estimated.groups)
    learning = replace(learning, data=replace(learning.data, rows=rows))
    figures: dict[str, float] = {
        "groups": estimated.groups,
        "zero_variance_groups": estimated.zero_variance_groups,
        "singleton_groups": estimated.singletons,
    }

    def fix(start: StartScores) -> FixedRows:
        pairs = zip(rows, start.proximal, strict=True)
        advantages = [torch.full_like(logprobs, estimated.values[row.trajectory_id]) for row, logprobs in pairs]
        return FixedRows(rows, start.proximal, advantages, start.entropies, start.reference, figures)

    update = Update(learning.scorer, fixed_rows(learning, fix), update_options(learning))
    shaped: JsonObject = {"advantage_floor": shaping.floor, "negative_advantage_scale": shaping.negative_scale}
    return drive(learning, update, shaped | (own or {}))


def fixed_rows(
    learning: Learning,
    fix: Callable[[StartScores], FixedRows],
    features: Features | None = None,
    *,
    learns: Sequence[bool] | None = None,
) -> FixedRows:
    """What is fixed at the start: from the checkpoint that is resumed, else by scoring all rows now.

    Checks that the data is close enough to the policy. `features` are taken of all rows, of which `fix` may leave some
    out; `learns` says which.
    """
    rows, run = learning.data.rows, learning.run
    if run.resume is not None:
        kept = rows if learns is None else [row for row, learning in zip(rows, learns, strict=True) if learning]
        return load_fixed(run.resume.directory, kept)
    objective = objective_of(learning.hyper)
    apart = 1 if objective.kl_beta else math.ceil(len(rows) / REFERENCE_SAMPLE)
    referenced = range(0, len(rows), apart)
    start = score_start(learning.scorer, rows, referenced=referenced, fresh=learning.policy.fresh, features=features)
    ess = check_off_policy(rows, start, objective.rejection_window)
    fixed = fix(start)
    return replace(fixed, figures={"start_ess": ess, "start_entropy": start.entropy, **fixed.figures})


def data_metrics(data: PolicyData) -> dict[str, float]:
    """Counts of what the rows were made of."""
    counts = data.counts
    return {
        "rows": len(data.rows),
        "forks": counts.forks,
        "orphan_calls": counts.orphans,
        "untrainable_calls": sum(counts.untrainable.values()),
        "unmasked_calls": sum(counts.untrainable[reason] for reason in UNMASKABLE),
        "unrewarded_trajectories": counts.unrewarded,
        "truncated_rows": counts.truncated,
    }


def objective_of(hyper: Hyperparameters) -> Objective:
    """The objective that a job asks for."""
    plain = Objective()
    surrogate, ratio = hyper.surrogate or plain.surrogate, hyper.ratio or plain.ratio
    low, high = SEQUENCE_CLIP if ratio == SEQUENCE else (plain.clip_low, plain.clip_high)
    if surrogate == CISPO:
        low, high = 1.0, CISPO_HIGH
    if hyper.clip_epsilon is not None:
        low = high = hyper.clip_epsilon
    window = hyper.rejection_window
    correction = hyper.off_policy_correction or BOTH
    return Objective(
        clip_low=low,
        clip_high=high if hyper.clip_epsilon_high is None else hyper.clip_epsilon_high,
        importance_cap=(hyper.importance_cap or plain.importance_cap) if correction in (BOTH, IMPORTANCE) else None,
        rejection_window=((window[0], window[1]) if window else plain.rejection_window)
        if correction in (BOTH, REJECTION)
        else None,
        kl_beta=plain.kl_beta if hyper.kl_beta is None else hyper.kl_beta,
        ratio=ratio,
        surrogate=surrogate,
    )


def update_options(learning: Learning) -> UpdateOptions:
    """How a job asks to go through the rows; absent members have their defaults.

    Raises `ValueError` where neither the job nor the algorithm has a learning rate.
    """
    hyper, algorithm = learning.hyper, ALGORITHMS[learning.spec.config.algorithm]
    rate = algorithm.learning_rate_of(hyper)
    plain = UpdateOptions(rate, learning.spec.batch_size, hyper.epochs or algorithm.default_epochs)
    longest = max(row.trained for row in learning.data.rows)
    return UpdateOptions(
        learning_rate=plain.learning_rate,
        batch_size=plain.batch_size * (hyper.gradient_accumulation or 1),
        epochs=plain.epochs,
        max_steps=hyper.max_steps,
        accumulation=hyper.gradient_accumulation or plain.accumulation,
        max_grad_norm=hyper.max_grad_norm or plain.max_grad_norm,
        ramp_steps=hyper.warmup_steps,
        scheduler=hyper.lr_scheduler or plain.scheduler,
        weight_decay=plain.weight_decay if hyper.weight_decay is None else hyper.weight_decay,
        seed=hyper.seed or 0,
        normalization=hyper.loss_normalization or plain.normalization,
        constant_tokens=hyper.max_length or longest,
        objective=objective_of(hyper),
    )


def effective(learning: Learning, update: Update) -> JsonObject:
    """The hyperparameters that all policy-gradient algorithms share, read from what trains."""
    options, schedule = update.options, update.schedule
    objective, limits = options.objective, asked_limits(Limits, learning.spec.config.health)
    return {
        **learning.policy.effective(),
        "batch_size": options.batch_size // options.accumulation,
        "gradient_accumulation": options.accumulation,
        "epochs": options.epochs,
        "max_steps": options.max_steps,
        **schedule.effective(options.learning_rate),
        "max_grad_norm": options.max_grad_norm,
        "max_length": learning.hyper.max_length,
        "pass_tokens": learning.scorer.pass_tokens,
        "seed": options.seed,
        "loss_normalization": options.normalization,
        "off_policy_correction": CORRECTIONS[bool(objective.importance_cap), bool(objective.rejection_window)],
        "ratio": objective.ratio,
        "surrogate": objective.surrogate,
        "clip_epsilon": objective.clip_low,
        "clip_epsilon_high": objective.clip_high,
        "importance_cap": objective.importance_cap,
        "rejection_window": list(objective.rejection_window) if objective.rejection_window else None,
        "kl_beta": objective.kl_beta,
        "entropy_coefficient": options.entropy_coefficient,
        "adam_betas": list(ADAM_BETAS),
        "weight_decay": options.weight_decay,
        "health": asdict(limits) if limits else None,
        "bf16": learning.policy.bf16,
    }


def drive(learning: Learning, update: Update, own: JsonObject) -> Outcome:
    """Run the train steps: report, save when due, stop when asked, or when the policy is no longer healthy.

    `own`: the effective hyperparameters that only this algorithm has. Raises `StopRequested`, and `Unhealthy` when none
    of the weights are worth keeping.
    """
    data, run = learning.data, learning.run
    learnt = {row.trajectory_id for row in update.fixed.rows}
    rewards = [trajectory.reward for trajectory in data.scored]
    constant = {"reward_mean": statistics.fmean(rewards), "reward_std": statistics.pstdev(rewards)}
    with LastHealthy(update.named()) as healthy:
        health = Health(asked_limits(Limits, learning.spec.config.health))
        steps = TrainSteps(update, healthy, health, drift_of(learning))
        if run.resume is not None:
            steps.load(run.resume.directory)
        run.started(len(learnt), update.total)
        last: dict[str, float] = {}
        while update.done < update.total and steps.stop is None:
            if run.stop_requested():
                run.save(update.done, steps.save)
                raise StopRequested
            if (metrics := steps.take()) is None:
                break
            last, number = metrics | constant, update.done
            shown = {**last, **(learning.held.scores_at(number, update.total) if learning.held else {})}
            run.stepped(TrainStep(number, update.total, update.epoch_of(number), update.epoch_of(update.total), shown))
            if run.checkpoint_due(number):
                run.save(number, steps.save)
        stop, offered = steps.end()
    last = {name: value for name, value in (last | offered).items() if name != "tokens"}  # is tokens_per_second
    return Outcome(
        samples=len(learnt),
        metrics=constant | data_metrics(data) | dict(update.fixed.figures) | last,
        health_stop=stop,
        final_reward=constant["reward_mean"],
        probe_prompt=data.prompt,
        effective=effective(learning, update) | own,
        evaluation=learning.held.results(run.stop_requested) if learning.held else None,
    )


def drift_of(learning: Learning) -> Drift | None:
    """What watches an independent metric of the data, if a job declares one.

    Raises `DataUnusable` when the data does not have it.
    """
    health = learning.spec.config.health
    if health is None or not health.enabled or health.independent_metric is None:
        return None
    scored = learning.data.scored
    known = {tried.trajectory_id: float(tried.success) for tried in scored if tried.success is not None}
    if len({*known.values()}) < 2:
        raise DataUnusable(
            f"health.independent_metric {health.independent_metric}: it is the same for all trajectories that have one"
        )
    return Drift({tried.trajectory_id: tried.reward for tried in scored}, known)


@dataclass(slots=True)
class TrainSteps:
    """The train steps of an update under the eye of its health limits."""

    update: Update
    healthy: LastHealthy
    health: Health
    drift: Drift | None
    stop: HealthStop | None = None
    """What was beyond its limit."""
    gradients: FirstGradients = field(default_factory=FirstGradients)

    def take(self) -> dict[str, float] | None:
        """One train step and its metrics; None when the weights that it began with are not healthy any more.

        Raises `NoGradient`.
        """
        measured, number = self.update.measure(), self.update.done + 1
        if self._judge(number, measured):
            return None
        norm = min(measured.metrics["grad_norm"], self.update.options.max_grad_norm)
        self.gradients.add(number, self.update.total, norm)
        self.healthy.keep(self.update.done)
        self.update.apply()
        return measured.metrics | self._shifts()

    def end(self) -> tuple[HealthStop | None, dict[str, float]]:
        """Judge the last weights too; those of a stopped training are replaced by the newest healthy ones.

        Returns the stop, and the figures of the policy that is left, on the rows of the last train step; the loss is
        that step's own. Raises `Unhealthy` when no weights are worth keeping.
        """
        if self.stop is None:
            measured = self.update.measure_end()
            self._judge(self.update.done, measured)
            if self.stop is None:
                return None, self._figures(measured)
        stop = described(self.stop, self.healthy.restore())
        if stop.kept_step is None:
            raise Unhealthy(stop)
        return stop, self._figures(self.update.measure_end())

    def save(self, directory: Path) -> None:
        """All that a resumed training needs."""
        self.update.save(directory)
        self.healthy.save(directory)
        state = {"norms": self.health.norms, "shifts": self.drift.shifts if self.drift else {}}
        (directory / HEALTH).write_bytes(msgspec.json.encode(state))

    def load(self, directory: Path) -> None:
        """Go on where `save` was called."""
        self.update.load(directory)
        self.healthy.load(directory)
        self.gradients = FirstGradients(math.inf)
        state = msgspec.json.decode((directory / HEALTH).read_bytes())
        self.health.norms = state["norms"]
        if self.drift is not None:
            self.drift.shifts = state["shifts"]

    def _figures(self, measured: Measured) -> dict[str, float]:
        """Of the weights that are left."""
        if self.drift is not None:
            self.drift.add(measured.shifts)
        return {name: value for name, value in measured.metrics.items() if name != "loss"} | self._shifts()

    def _shifts(self) -> dict[str, float]:
        if self.drift is None:
            return {}
        return {"reward_shift": self.drift.reward_shift, "independent_shift": self.drift.independent_shift}

    def _judge(self, number: int, measured: Measured) -> bool:
        """Whether train step `number` found the weights unhealthy. Those that nothing was learnt into never are."""
        if self.drift is not None:
            self.drift.add(measured.shifts)
        if self.update.done:
            self.stop = self.health.judge(number, measured.vitals, self.drift)
        return self.stop is not None
