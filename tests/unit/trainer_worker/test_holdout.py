"""Held-out tasks of sft and policy gradients: never learnt from, and claimed about no more than they show."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.rules.training_options import held_out_tasks
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.learner.holdout import Try, likelihood_gained, reward_gained
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.snapshot_rows import trajectory_row
from tests.support.toy_preferences import parrot_chats
from tests.support.trainer_runs import RecordingRun, job_spec, mean_reward, play, toy_model, trained

FULL = Hyperparameters(learning_rate=2e-3, batch_size=32, epochs=2, full_finetune=True, warmup_steps=1)


def tried(task: int, logprob: float, reward: float) -> Try:
    return Try(f"k{task}", reward, [Row.of(f"t{task}", [1, 2], [False, True], [logprob])])


def test_all_tries_of_a_task_are_on_one_side_whatever_their_order() -> None:
    keys = [f"k{number % 20}" for number in range(80)]
    held = held_out_tasks(keys, 0.25, seed=3)
    assert len(held) == 5
    assert held_out_tasks(keys[::-1], 0.25, seed=3) == held
    assert held_out_tasks(keys, 0.25, seed=4) != held


def test_a_task_with_more_tries_than_the_share_is_not_held_out() -> None:
    assert held_out_tasks(["large"] * 18 + ["small"] * 2, 0.1, seed=0) == {"small"}


def test_a_policy_gradient_gains_reward_on_tasks_it_never_learns_from(tmp_path: Path) -> None:
    model = toy_model(0)
    before = mean_reward(play(model, 2000, 1, torch.Generator().manual_seed(1)))
    logged = play(model, 120, 8, torch.Generator().manual_seed(0))
    run = RecordingRun(tmp_path, "rloo")
    policy = TrainedPolicy(model, cast("Any", None), "model", bf16=False, fresh=True)
    outcome = load_train("rloo")(job_spec("rloo", hyper=FULL, holdout=0.5), policy, logged, run)
    scores = (outcome.evaluation and outcome.evaluation.benchmark_scores) or {}
    assert run.samples <= 480
    assert scores["holdout_tasks"] == 60
    assert scores["holdout_tries"] == 480
    truth = mean_reward(play(model.eval(), 2000, 1, torch.Generator().manual_seed(2))) - before
    assert 0 < scores["improvement_low"] < truth < scores["improvement_high"]
    assert run.steps[-1].metrics["holdout_ess"] == pytest.approx(scores["holdout_ess"], abs=1e-6)
    assert sum("holdout_ess" in step.metrics for step in run.steps) == 5


def test_tasks_that_are_held_out_change_no_weight(tmp_path: Path) -> None:
    logged = play(toy_model(0), 20, 8, torch.Generator().manual_seed(0))
    held = held_out_tasks([row.task_key for row in logged], 0.5, 0)
    ends: list[list[torch.Tensor]] = []
    for name, rows, share in (("apart", logged, 0.5), ("without", [r for r in logged if r.task_key not in held], 0.0)):
        model = toy_model(0)
        policy = TrainedPolicy(model, cast("Any", None), "model", bf16=False, fresh=True)
        run = RecordingRun(tmp_path / name, "rloo")
        load_train("rloo")(job_spec("rloo", hyper=FULL, holdout=share), policy, rows, run)
        ends.append([parameter.detach().clone() for parameter in model.parameters()])
    for apart, without in zip(*ends, strict=True):
        assert torch.equal(apart, without)


def test_nothing_is_claimed_of_a_policy_that_equals_its_start() -> None:
    tries = [tried(task, -1.0, float(number == task % 4)) for task in range(10) for number in range(4)]
    same = torch.full((40,), -1.0)
    for results in (reward_gained(tries, same, same), likelihood_gained(tries, same, same)):
        assert results.improvement_over_baseline is None
        assert "improvement_low" not in (results.benchmark_scores or {})


def test_an_estimated_gain_has_the_truth_within_its_interval() -> None:
    """A right answer of chance .25 that gets the chance .5: the gain is .25."""
    draws = random.Random(5)
    tries: list[Try] = []
    now: list[float] = []
    for task in range(400):
        for _ in range(4):
            right = draws.random() < 0.25
            tries.append(tried(task, math.log(0.25 if right else 0.75), float(right)))
            now.append(math.log(0.5))
    start = torch.tensor([float(one.rows[0].behavior_logprobs[0]) for one in tries])
    results = reward_gained(tries, start, torch.tensor(now))
    scores = results.benchmark_scores or {}
    assert scores["improvement_low"] < 0.25 < scores["improvement_high"]
    assert scores["improvement_low"] > 0.15
    assert scores["holdout_ess"] == pytest.approx(0.75, abs=0.05)


@pytest.mark.parametrize(
    ("shift", "rewards"), [(4.0, [0.0, 0.0, 0.0, 1.0]), (0.0, [1.0, 1.0, 1.0, 1.0])], ids=["far", "equal"]
)
def test_tries_that_show_nothing_have_no_improvement(shift: float, rewards: list[float]) -> None:
    tries = [tried(task, -1.0, reward) for task in range(10) for reward in rewards]
    now = torch.tensor([-1.0 + shift * (index % 4 == 3) for index in range(40)])
    results = reward_gained(tries, torch.full((40,), -1.0), now)
    assert results.improvement_over_baseline is None
    assert "improvement_low" not in (results.benchmark_scores or {})


def test_one_task_is_too_few_for_an_interval_of_the_loss() -> None:
    results = likelihood_gained([tried(0, -1.0, 0.0)] * 3, torch.full((3,), -1.0), torch.full((3,), -0.5))
    assert results.improvement_over_baseline is None
    assert (results.benchmark_scores or {})["holdout_loss"] == pytest.approx(0.5)


def test_sft_makes_answers_likelier_of_tasks_it_never_learns_from(base: str, tmp_path: Path) -> None:
    rows = [trajectory_row(n, messages=messages) for n, messages in enumerate(parrot_chats())]
    run = RecordingRun(tmp_path, "sft")
    hyper = Hyperparameters(learning_rate=5e-3, batch_size=8, max_steps=10, full_finetune=True)
    _, outcome = trained(run, base, rows, hyper, holdout=0.25)
    evaluation = outcome.evaluation
    assert evaluation is not None
    scores = evaluation.benchmark_scores or {}
    assert run.samples + scores["holdout_tries"] == len(rows)
    assert scores["holdout_loss"] < scores["holdout_loss_before"]
    assert 0 < scores["improvement_low"] < (evaluation.improvement_over_baseline or 0)


def test_a_single_task_cannot_be_held_out(tmp_path: Path) -> None:
    logged = play(toy_model(0), 1, 8, torch.Generator().manual_seed(0))
    policy = TrainedPolicy(toy_model(0), cast("Any", None), "model", bf16=False, fresh=True)
    with pytest.raises(DataUnusable, match="holds out none of 8 trajectories"):
        load_train("rloo")(job_spec("rloo", hyper=FULL, holdout=0.25), policy, logged, RecordingRun(tmp_path, "rloo"))
