"""Trainings whose losses compare from step to step are stopped when they break, and keep healthy weights."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import ErrorCode, HealthLimits, Hyperparameters
from ratchet.trainer_worker.errors import Diverged, StopRequested, Unhealthy, error_code
from ratchet.trainer_worker.job import Finished, JobSpec
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Outcome
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.child_run import train
from ratchet.trainer_worker.training.learner.health import asked_limits
from ratchet.trainer_worker.training.learner.watch import LoopLimits, Watch
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy
from tests.support.snapshot_rows import label_row, pair_row, trajectory_row
from tests.support.toy_preferences import parrot_chats, parrot_labels, parrot_pairs
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, write_pairs

HYPER = Hyperparameters(learning_rate=1e-3, batch_size=8, max_steps=90, full_finetune=True, seed=3)
TOO_FAST = replace(HYPER, max_steps=30, learning_rate=30.0, warmup_steps=10, max_grad_norm=100.0)
"""The first steps of the warm-up learn something, and its later ones destroy it, with any seed."""
APART = 12
"""Pairs at the end that are held out."""


def examples_of(algorithm: str) -> list[Any]:
    if algorithm == "sft":
        return [trajectory_row(number, messages=chat) for number, chat in enumerate(parrot_chats())]
    if algorithm == "kto":
        return [label_row(number, **one) for number, one in enumerate(parrot_labels())]
    return [pair_row(number, **one) for number, one in enumerate(parrot_pairs())]


def contradicted() -> list[PairRow]:
    """Pairs to learn from, and at the end some that call the opposite better."""
    learn = [pair_row(number, **one) for number, one in enumerate(parrot_pairs())]
    turned = [dict(one, chosen=one["rejected"], rejected=one["chosen"]) for one in parrot_pairs()[:APART]]
    return learn + [pair_row(100 + number, **one) for number, one in enumerate(turned)]


def trained(spec: JobSpec, run: RecordingRun, examples: list[Any]) -> tuple[TrainedPolicy, Outcome]:
    torch.manual_seed(spec.config.hyperparameters.seed or 0)
    policy = load_policy(spec)
    return policy, load_train(spec.config.algorithm)(spec, policy, examples, run)


def watched(spec: JobSpec, **limits: Any) -> JobSpec:
    return replace(spec, config=replace(spec.config, health=HealthLimits(**limits)))


# ---------------------------------------------------------------------------------------------------- single figures
def after_ten_steps(**limits: float) -> Watch:
    watch = Watch(LoopLimits(**limits), clip=1.0)
    for step in range(1, 11):
        assert watch.judge(step, loss=2.0, norm=0.5, entropy=1.0) is None
    return watch


@pytest.mark.parametrize(
    ("measured", "figure"),
    [
        ({}, None),
        ({"loss": 6.9}, None),  # the mean of five rises by .98
        ({"loss": 7.1}, "loss"),
        ({"norm": 99.0}, None),
        ({"norm": 101.0}, "grad_norm"),
        ({"entropy": 5.9}, None),
        ({"entropy": 6.1}, "policy_entropy"),
    ],
)
def test_each_figure_has_its_limit(measured: dict[str, float], figure: str | None) -> None:
    stop = after_ten_steps().judge(11, **{"loss": 2.0, "norm": 0.5, "entropy": 1.0, **measured})
    assert (stop.figure if stop else None) == figure


def test_the_loss_is_compared_with_its_least_mean_and_not_with_its_start() -> None:
    watch = after_ten_steps()
    for step in range(11, 21):
        assert watch.judge(step, loss=0.2, norm=0.5) is None
    stops = [watch.judge(step, loss=1.5, norm=0.5) for step in range(21, 26)]
    assert [stop.figure if stop else None for stop in stops] == [None, None, None, "loss", "loss"]


def test_a_gradient_that_is_shortened_anyway_is_compared_with_what_is_not() -> None:
    watch = Watch(LoopLimits(), clip=1.0)
    for step in range(1, 11):
        assert watch.judge(step, loss=0.0, norm=1e-6) is None
    assert watch.judge(11, loss=0.0, norm=0.9) is None


@pytest.mark.parametrize(
    ("scores", "figure"),
    [
        ({"holdout_loss": 1.4}, None),
        ({"holdout_loss": 1.6}, "holdout_loss"),
        ({"holdout_loss": 1.0, "holdout_pairs": 100, "holdout_accuracy": 0.31}, None),
        ({"holdout_loss": 1.0, "holdout_pairs": 100, "holdout_accuracy": 0.29}, "holdout_accuracy"),
        ({"holdout_loss": 1.0, "holdout_pairs": 100, "holdout_accuracy": 0.1, "holdout_win_rate": 0.5}, None),
        ({"holdout_loss": 1.0, "holdout_liked": 100, "holdout_disliked": 100, "holdout_auc": 0.3}, "holdout_auc"),
        ({"holdout_loss": 1.0, "holdout_liked": 10, "holdout_disliked": 10, "holdout_auc": 0.3}, None),
    ],
)
def test_what_is_held_out_judges_too(scores: dict[str, float], figure: str | None) -> None:
    watch = Watch(LoopLimits(), clip=1.0)
    assert watch.improves({"holdout_loss": 1.0})
    stop = watch.judge_held_out(5, scores)
    assert (stop.figure if stop else None) == figure


def test_limits_of_a_request_replace_defaults_and_none_stop_nothing() -> None:
    off = Watch(asked_limits(LoopLimits, HealthLimits(enabled=False)), clip=1.0)
    assert [off.judge(step, loss=10.0**step, norm=10.0**step) for step in range(9)] == [None] * 9
    assert off.judge_held_out(1, {"holdout_loss": 1e9, "holdout_pairs": 99, "holdout_win_rate": 0.0}) is None
    assert asked_limits(LoopLimits, None) == LoopLimits()
    assert asked_limits(LoopLimits, HealthLimits(max_loss_rise=0.1)) == LoopLimits(max_loss_rise=0.1)


def test_what_it_has_seen_outlives_a_resume() -> None:
    watch = after_ten_steps()
    watch.improves({"holdout_loss": 1.0})
    resumed = Watch(LoopLimits(), clip=1.0)
    resumed.decode(watch.encode())
    assert resumed.seen == watch.seen
    assert resumed.judge(11, loss=9.0, norm=0.5) == watch.judge(11, loss=9.0, norm=0.5)


# --------------------------------------------------------------------------------------------------- whole trainings
@pytest.mark.parametrize("algorithm", ["sft", "dpo", "kto", "reward_model"])
def test_a_training_that_breaks_ends_with_weights_that_were_healthy(algorithm: str, base: str, tmp_path: Path) -> None:
    spec = watched(job_spec(algorithm, base=base, hyper=TOO_FAST), max_loss_rise=0.1)
    run = RecordingRun(tmp_path, algorithm)
    policy, outcome = trained(spec, run, examples_of(algorithm))
    stop = outcome.health_stop
    assert stop is not None
    assert stop.figure in ("loss", "grad_norm", "policy_entropy")
    assert stop.kept_step == len(run.steps) - 1
    assert f"the weights of train step {stop.kept_step} were kept" in stop.message
    assert all(bool(torch.isfinite(parameter).all()) for parameter in policy.model.parameters())


@pytest.mark.parametrize(
    ("algorithm", "rate"), [pytest.param("dpo", 3e-3, marks=pytest.mark.slow), ("reward_model", 1e-3)]
)
def test_weights_that_only_remember_give_way_to_the_best_on_held_out_pairs(
    algorithm: str, rate: float, base: str, tmp_path: Path
) -> None:
    spec = job_spec(algorithm, base=base, hyper=replace(HYPER, learning_rate=rate))
    spec = replace(spec, loop=replace(spec.loop, held_out=APART, eval_steps=6))
    run = RecordingRun(tmp_path, algorithm)
    _, outcome = trained(spec, run, contradicted())
    stop, seen = outcome.health_stop, {step.number: step.metrics.get("holdout_loss") for step in run.steps}
    losses = {step: loss for step, loss in seen.items() if loss is not None}
    assert stop is not None
    assert stop.figure == "holdout_loss"
    assert stop.step == max(losses)
    best = min(losses, key=lambda step: losses[step])
    assert stop.kept_step == best
    assert outcome.evaluation is not None
    assert (outcome.evaluation.benchmark_scores or {})["holdout_loss"] == pytest.approx(losses[best], abs=1e-4)


def test_a_training_without_stops_goes_on_to_its_end(base: str, tmp_path: Path) -> None:
    spec = watched(job_spec("reward_model", base=base, hyper=replace(HYPER, max_steps=12)), enabled=False)
    spec = replace(spec, loop=replace(spec.loop, held_out=APART, eval_steps=6))
    run = RecordingRun(tmp_path, "reward_model")
    _, outcome = trained(spec, run, contradicted())
    assert (outcome.health_stop, len(run.steps)) == (None, 12)


def test_a_training_that_breaks_before_its_first_evaluation_fails(base: str, tmp_path: Path) -> None:
    spec = job_spec("reward_model", base=base, hyper=TOO_FAST)
    spec = watched(replace(spec, loop=replace(spec.loop, held_out=APART, eval_steps=60)), max_loss_rise=0.1)
    with pytest.raises(Unhealthy, match="no earlier weights are worth keeping") as failure:
        trained(spec, RecordingRun(tmp_path, "reward_model"), contradicted())
    assert error_code(failure.value) == ErrorCode.CONVERGENCE


def test_a_loss_that_is_no_number_ends_the_training_before_its_update(base: str, tmp_path: Path) -> None:
    spec = job_spec("sft", base=base, hyper=replace(HYPER, learning_rate=1e30, warmup_steps=0, max_grad_norm=1e30))
    run = RecordingRun(tmp_path, "sft")
    with pytest.raises(Diverged):
        trained(spec, run, examples_of("sft"))
    assert len(run.steps) < 3


def test_a_resumed_training_keeps_the_weights_that_were_healthy_before(base: str, tmp_path: Path) -> None:
    spec = job_spec("reward_model", base=base, hyper=HYPER)
    spec = replace(spec, loop=replace(spec.loop, held_out=APART, eval_steps=6))
    unbroken = RecordingRun(tmp_path / "whole", "reward_model")
    whole, outcome = trained(spec, unbroken, contradicted())
    assert outcome.health_stop is not None
    broken = RecordingRun(tmp_path / "half", "reward_model", stop_after=outcome.health_stop.step - 1)
    with pytest.raises(StopRequested):
        trained(spec, broken, contradicted())
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, "reward_model")
    rest = RecordingRun(tmp_path / "rest", "reward_model", resume=checkpoint)
    resumed, again = trained(spec, rest, contradicted())
    assert again.health_stop == outcome.health_stop
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_stopped_training_tells_its_worker_why(base: str, tmp_path: Path) -> None:
    data = write_pairs(tmp_path / "pairs.parquet", parrot_pairs())
    spec = watched(job_spec("reward_model", base=base, dataset=str(data), hyper=TOO_FAST), max_loss_rise=0.1)
    last = train(spec, tmp_path, io.BytesIO(), threading.Event(), threading.Event())
    assert isinstance(last, Finished)
    assert last.health_stop is not None
    assert (last.health_stop.kept_step or 0) >= 1
