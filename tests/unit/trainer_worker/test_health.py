"""Which figures of a train step stop a training, and what becomes of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from ratchet.core.contract.training import ErrorCode, HealthLimits, Hyperparameters
from ratchet.trainer_worker.errors import DataUnusable, Diverged, StopRequested, Unhealthy, error_code
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.learner.health import (
    Drift,
    Health,
    Limits,
    Vitals,
    asked_limits,
    correlation,
    described,
)
from ratchet.trainer_worker.training.learner.last_healthy import FILE_STEPS, LastHealthy
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, play, toy_model

WELL = Vitals(ess=0.8, start_ess=0.9, approx_kl=0.1, entropy=0.5, start_entropy=0.6, grad_norm=1.0)


def judged(**changes: float) -> str | None:
    """The figure that stops a training after ten healthy train steps."""
    health = Health(Limits())
    for step in range(10):
        assert health.judge(step, WELL) is None
    values = {name: getattr(WELL, name) for name in Vitals.__dataclass_fields__}
    stop = health.judge(11, Vitals(**{**values, **changes}))
    return None if stop is None else stop.figure


@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({}, None),
        ({"ess": 0.09}, "ess"),
        ({"ess": 0.09, "start_ess": 0.1}, None),
        ({"approx_kl": 1.1}, "approx_kl"),
        ({"entropy": 1.7}, "policy_entropy"),
        ({"entropy": 0.0001}, "policy_entropy"),
        ({"grad_norm": 101.0}, "grad_norm"),
        ({"grad_norm": 99.0}, None),
    ],
)
def test_each_figure_has_its_limit(changes: dict[str, float], figure: str | None) -> None:
    assert judged(**changes) == figure


def test_gradients_are_compared_once_there_are_five() -> None:
    health = Health(Limits())
    assert health.judge(1, Vitals(grad_norm=1e-9)) is None
    assert health.judge(2, Vitals(grad_norm=1e3)) is None


def test_without_limits_everything_is_healthy() -> None:
    health = Health(asked_limits(Limits, HealthLimits(enabled=False)))
    assert health.judge(1, Vitals(ess=0.0, approx_kl=1e9)) is None


def test_limits_of_a_request_replace_the_defaults() -> None:
    limits = asked_limits(Limits, HealthLimits(min_ess=0.5, max_kl=0.05))
    assert limits == Limits(min_ess=0.5, max_kl=0.05)
    assert asked_limits(Limits, None) == Limits()


def test_a_policy_that_moves_away_from_an_independent_metric_is_stopped() -> None:
    """The reward calls long answers good, customers call short ones good."""
    names = [f"t{n}" for n in range(64)]
    rewards = {name: float(n % 2) for n, name in enumerate(names)}
    against, unrelated = {name: 1 - reward for name, reward in rewards.items()}, {n: float(n > "t3") for n in names}
    for independent, figure in ((against, "independent_shift"), (unrelated, None)):
        drift = Drift(rewards, independent)
        drift.add({name: 0.2 * rewards[name] + 0.001 * n for n, name in enumerate(names)})
        stop = Health(Limits()).judge(3, Vitals(), drift)
        assert (stop.figure if stop else None) == figure


def test_policy_that_unlearns_what_is_rewarded_is_judged_by_other_figures() -> None:
    names = [f"t{n}" for n in range(64)]
    rewards = {name: float(n % 2) for n, name in enumerate(names)}
    drift = Drift(rewards, rewards)
    drift.add({name: -rewards[name] for name in names})
    assert drift.independent_shift == pytest.approx(-1)
    assert Health(Limits()).judge(3, Vitals(), drift) is None


def test_a_correlation_with_what_never_varies_is_none() -> None:
    assert correlation([1.0, 2.0], [1.0, 1.0]) == correlation([1.0], [1.0]) == 0.0


def test_a_stop_has_a_sentence() -> None:
    stop = Health(Limits()).judge(12, Vitals(ess=0.006))
    assert stop is not None
    assert described(stop, 11).message == (
        "ess 0.006 at train step 12 is below its limit 0.1: the weights of train step 11 were kept"
    )
    assert described(stop, None).message.endswith("no earlier weights are worth keeping")


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "in a file"])
def test_the_newest_healthy_weights_come_back(memory: int) -> None:
    layer = nn.Linear(2, 2)
    with LastHealthy(layer.named_parameters(), memory) as healthy:
        assert healthy.restore() is None
        healthy.keep(0)
        assert healthy.restore() is None
        for step in (1, 1 + FILE_STEPS):
            with torch.no_grad():
                layer.weight.fill_(step)
            healthy.keep(step)
        with torch.no_grad():
            layer.weight.fill_(-1.0)
        assert healthy.restore() == 1 + FILE_STEPS
    assert layer.weight.tolist() == [[51.0, 51.0], [51.0, 51.0]]


# --------------------------------------------------------------------------------------------------- whole trainings
RATE = Hyperparameters(learning_rate=1e-3, batch_size=8, full_finetune=True, warmup_steps=1, kl_beta=0.0, epochs=8)


def policy() -> TrainedPolicy:
    return TrainedPolicy(toy_model(0), cast("Any", None), "model", bf16=False, fresh=True)


def logged() -> list[Any]:
    return play(toy_model(0), 16, 4, torch.Generator().manual_seed(0))


def spec(hyper: Hyperparameters, health: HealthLimits | None = None) -> Any:
    made = job_spec("rloo", hyper=hyper)
    return replace(made, config=replace(made.config, health=health))


def test_a_policy_that_breaks_falls_back_to_its_last_healthy_weights(tmp_path: Path) -> None:
    """KL may be .02: some train steps stay below. What is left is what so many train steps make, to the bit."""
    broken, run = policy(), RecordingRun(tmp_path / "a", "rloo")
    outcome = load_train("rloo")(spec(RATE, HealthLimits(max_kl=0.02)), broken, logged(), run)
    stop = outcome.health_stop
    assert stop is not None
    assert (stop.figure, stop.limit) == ("approx_kl", 0.02)
    assert stop.value > 0.02
    assert stop.kept_step is not None
    assert 1 <= stop.kept_step == stop.step - 2
    assert all(step.metrics["approx_kl"] <= 0.02 for step in run.steps)
    assert outcome.metrics["approx_kl"] <= 0.02

    shorter, second = policy(), RecordingRun(tmp_path / "b", "rloo", stop_after=stop.kept_step)
    with pytest.raises(StopRequested):
        load_train("rloo")(spec(RATE, HealthLimits(enabled=False)), shorter, logged(), second)
    for one, other in zip(broken.model.parameters(), shorter.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_policy_that_breaks_at_once_fails_with_convergence(tmp_path: Path) -> None:
    hyper = replace(RATE, learning_rate=3.0, max_grad_norm=100.0, max_steps=3)
    with pytest.raises(Unhealthy, match="no earlier weights") as caught:
        load_train("rloo")(spec(hyper), policy(), logged(), RecordingRun(tmp_path, "rloo"))
    assert error_code(caught.value) == ErrorCode.CONVERGENCE
    assert caught.value.stop.kept_step is None


def test_the_weights_of_the_last_train_step_are_judged_too(tmp_path: Path) -> None:
    """Nothing comes after it that would measure them."""
    hyper = replace(RATE, learning_rate=3.0, max_grad_norm=100.0, max_steps=1)
    with pytest.raises(Unhealthy):
        load_train("rloo")(spec(hyper), policy(), logged(), RecordingRun(tmp_path, "rloo"))


@pytest.mark.parametrize("health", [None, HealthLimits(enabled=False)], ids=["judged", "not judged"])
@pytest.mark.parametrize("rate", [1e10, 1e38])
def test_weights_of_a_last_step_that_give_no_numbers_are_never_a_policy(
    tmp_path: Path, rate: float, health: HealthLimits | None
) -> None:
    """What is no number compares with no limit."""
    hyper = replace(RATE, learning_rate=rate, max_steps=1)
    with pytest.raises(Diverged, match="after train step 1") as caught:
        load_train("rloo")(spec(hyper, health), policy(), logged(), RecordingRun(tmp_path, "rloo"))
    assert error_code(caught.value) == ErrorCode.CONVERGENCE


def test_a_training_without_health_stops_runs_to_its_end(tmp_path: Path) -> None:
    hyper, run = replace(RATE, learning_rate=3.0, max_grad_norm=100.0, max_steps=3), RecordingRun(tmp_path, "rloo")
    outcome = load_train("rloo")(spec(hyper, HealthLimits(enabled=False)), policy(), logged(), run)
    assert outcome.health_stop is None
    assert len(run.steps) == 3


def test_resumed_training_is_stopped_where_an_unbroken_one_is(tmp_path: Path) -> None:
    limits, train = HealthLimits(max_kl=0.02), load_train("rloo")
    whole = policy()
    stop = train(spec(RATE, limits), whole, logged(), RecordingRun(tmp_path / "whole", "rloo")).health_stop
    assert stop is not None
    assert stop.kept_step is not None
    first = RecordingRun(tmp_path / "half", "rloo", stop_after=stop.kept_step + 1)
    with pytest.raises(StopRequested):
        train(spec(RATE, limits), policy(), logged(), first)
    checkpoint = open_checkpoint(first.newest().directory, JOB_ID, "rloo")
    rest, resumed = RecordingRun(tmp_path / "rest", "rloo", resume=checkpoint), policy()
    assert train(spec(RATE, limits), resumed, logged(), rest).health_stop == stop
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_learning_against_the_outcome_of_the_task_is_stopped(tmp_path: Path) -> None:
    """A reward that pays for failures, and the outcome declared as what the reward does not see."""
    tries = play(toy_model(0), 64, 8, torch.Generator().manual_seed(0))
    hacked = [replace(one, success=one.reward > 0, reward=1.0 - one.reward) for one in tries]
    limits, run = HealthLimits(independent_metric="success", max_kl=10.0), RecordingRun(tmp_path, "rloo")
    outcome = load_train("rloo")(spec(replace(RATE, batch_size=64, learning_rate=1e-2), limits), policy(), hacked, run)
    assert outcome.health_stop is not None
    assert outcome.health_stop.figure == "independent_shift"
    assert run.steps[-1].metrics["reward_shift"] > 0 > run.steps[-1].metrics["independent_shift"]


def test_an_independent_metric_that_the_data_lacks_is_refused(tmp_path: Path) -> None:
    asked, train = spec(RATE, HealthLimits(independent_metric="success")), load_train("rloo")
    with pytest.raises(DataUnusable, match="independent_metric"):
        train(asked, policy(), logged(), RecordingRun(tmp_path, "rloo"))
