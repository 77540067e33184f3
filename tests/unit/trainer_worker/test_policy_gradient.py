"""Policies get better from logged trajectories; what cannot be learnt from is refused; a stop loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model

from ratchet.core.contract.training import Hyperparameters
from ratchet.core.datasets.domain.sequences import packed
from ratchet.trainer_worker.errors import DataUnusable, Diverged, NoGradient, StopRequested
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.checkpoints import open_checkpoint
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import policy_data
from ratchet.trainer_worker.training.policy import TrainedPolicy
from tests.support.snapshot_rows import call as logged_call
from tests.support.trainer_runs import JOB_ID, RecordingRun, job_spec, mean_reward, play, toy_model

FULL = Hyperparameters(
    learning_rate=1e-2, batch_size=64, epochs=2, full_finetune=True, kl_beta=0.0, warmup_steps=1, max_grad_norm=1.0
)


def policy_of(model: Any) -> TrainedPolicy:
    """A full fine-tune needs no tokenizer until it is saved."""
    return TrainedPolicy(model, cast("Any", None), "model", bf16=False, fresh=True)


def with_lora(model: Any, dropout: float = 0.0) -> TrainedPolicy:
    torch.manual_seed(1)
    config = LoraConfig(r=8, lora_alpha=16, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    return TrainedPolicy(get_peft_model(model, config), cast("Any", None), "adapter", bf16=False, fresh=True)


@pytest.mark.parametrize("algorithm", ["rloo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_a_two_call_agent_learns_from_its_logged_trajectories(algorithm: str, tmp_path: Path) -> None:
    model = toy_model(0)
    generator = torch.Generator().manual_seed(0)
    train = load_train(algorithm)
    slowly = replace(FULL, learning_rate=5e-3)  # at twice the rate a step of some processors passes the limit of KL
    before = mean_reward(play(model, 200, 1, generator))
    for _ in range(10):
        logged = play(model, 32, 8, generator)
        train(job_spec(algorithm, hyper=slowly), policy_of(model), logged, RecordingRun(tmp_path, algorithm))
        model.eval()
    after = mean_reward(play(model, 200, 1, generator))
    assert before < 0.25
    assert after > 0.8


def test_a_correction_that_cuts_every_gradient_is_refused(tmp_path: Path) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    spec = job_spec("rloo", hyper=replace(FULL, importance_cap=1e-30))
    with pytest.raises(NoGradient, match="no weight would move"):
        load_train("rloo")(spec, policy_of(toy_model(0)), logged, RecordingRun(tmp_path, "rloo"))


def test_every_estimator_trains_an_adapter_and_leaves_the_base_alone(tmp_path: Path) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    for algorithm in ("rloo", "grpo", "reinforce", "ppo"):
        policy = with_lora(toy_model(0))
        base = {name: p.clone() for name, p in policy.model.named_parameters() if not p.requires_grad}
        run = RecordingRun(tmp_path / algorithm, algorithm)
        hyper = Hyperparameters(learning_rate=1e-2, batch_size=16)
        outcome = load_train(algorithm)(job_spec(algorithm, hyper=hyper), policy, logged, run)
        assert run.total == len(run.steps) > 0
        assert outcome.metrics["kl_divergence"] > 0
        assert outcome.metrics["start_ess"] == pytest.approx(1.0, abs=1e-3)
        assert all(torch.equal(p, base[name]) for name, p in policy.model.named_parameters() if name in base)


@pytest.mark.parametrize(("algorithm", "dropout"), [("rloo", 0.2), ("ppo", 0.0)])
def test_stopped_and_resumed_training_ends_bit_for_bit_like_unbroken_one(
    algorithm: str, dropout: float, tmp_path: Path
) -> None:
    logged = play(toy_model(0), 16, 4, torch.Generator().manual_seed(0))
    spec = job_spec(algorithm, hyper=Hyperparameters(learning_rate=1e-2, batch_size=8, epochs=8, max_steps=10))
    train = load_train(algorithm)

    whole = with_lora(toy_model(0), dropout)
    unbroken = RecordingRun(tmp_path / "whole", algorithm)
    train(spec, whole, logged, unbroken)

    broken = RecordingRun(tmp_path / "half", algorithm, stop_after=5)
    with pytest.raises(StopRequested):
        train(spec, with_lora(toy_model(0), dropout), logged, broken)
    checkpoint = open_checkpoint(broken.newest().directory, JOB_ID, algorithm)
    resumed = with_lora(toy_model(0), dropout)
    rest = RecordingRun(tmp_path / "rest", algorithm, resume=checkpoint)
    train(spec, resumed, logged, rest)

    assert len(unbroken.steps) == 10
    assert unbroken.losses == broken.losses + rest.losses
    for (name, one), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_the_learning_rate_ramps_over_a_tenth_of_the_steps_and_falls(tmp_path: Path) -> None:
    logged = play(toy_model(0), 16, 4, torch.Generator().manual_seed(0))
    run = RecordingRun(tmp_path, "rloo")
    hyper = Hyperparameters(learning_rate=1.0e-3, batch_size=4, epochs=8, max_steps=20)
    load_train("rloo")(job_spec("rloo", hyper=hyper), with_lora(toy_model(0)), logged, run)
    rates = [step.metrics["learning_rate"] for step in run.steps]
    assert rates[:2] == pytest.approx([5e-4, 1e-3])
    assert rates[-1] == pytest.approx(1e-3 * (1 - 0.9 * 18 / 19))


def test_accumulated_micro_batches_give_the_same_update_as_one_batch(tmp_path: Path) -> None:
    logged = play(toy_model(0), 16, 4, torch.Generator().manual_seed(0))
    trained: list[list[torch.Tensor]] = []
    for batch, accumulation in ((16, 1), (4, 4)):
        policy = policy_of(toy_model(0))
        hyper = Hyperparameters(
            learning_rate=1e-3, batch_size=batch, gradient_accumulation=accumulation, max_steps=2, full_finetune=True
        )
        load_train("rloo")(job_spec("rloo", hyper=hyper), policy, logged, RecordingRun(tmp_path, "rloo"))
        trained.append([p.detach().clone() for p in policy.model.parameters()])
    for one, other in zip(*trained, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_opposite_reward_teaches_the_opposite(tmp_path: Path) -> None:
    """Successes of a mirrored reward get no floor: they are the failures now."""
    spec = job_spec("rloo", hyper=changed(advantage_floor=0.25))
    dataset = spec.config.dataset
    mirrored = _with_dataset(spec, type(dataset)(source="s3", sample_size=1, reward_transform="negate"))
    calls = [logged_call([1, 3], [4], [-2.0])]
    logged = play(toy_model(0), 1, 2, torch.Generator().manual_seed(0))
    solved = [packed(replace(one, reward=0.2, success=True, task_key="k", calls=calls)) for one in logged]
    with pytest.raises(DataUnusable, match="equal rewards"):
        load_train("rloo")(mirrored, policy_of(toy_model(0)), solved, RecordingRun(tmp_path, "rloo"))


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "reinforce", "ppo"])
@pytest.mark.parametrize(("ratio", "surrogate"), [("sequence", "ppo"), ("token", "cispo")])
def test_ratios_of_rows_and_weights_of_cispo_teach(algorithm: str, ratio: str, surrogate: str, tmp_path: Path) -> None:
    """One update makes the better tries likelier."""
    logged = play(toy_model(0), 32, 8, torch.Generator().manual_seed(0))
    hyper = changed(ratio=ratio, surrogate=surrogate, clip_epsilon=None, epochs=1)
    run = RecordingRun(tmp_path, algorithm)
    model = toy_model(0)
    outcome = load_train(algorithm)(job_spec(algorithm, hyper=hyper), policy_of(model), logged, run)
    assert (outcome.effective["ratio"], outcome.effective["surrogate"]) == (ratio, surrogate)
    again = mean_reward(play(model.eval(), 200, 1, torch.Generator().manual_seed(1)))
    assert again > mean_reward(play(toy_model(0), 200, 1, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    ("correction", "expected"),
    [(None, (2.0, [0.9, 1.1])), ("importance", (2.0, None)), ("rejection", (None, [0.9, 1.1])), ("none", (None, None))],
)
def test_corrections_are_left_out_on_request(
    correction: str | None, expected: tuple[float | None, list[float] | None], tmp_path: Path
) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    spec = job_spec("rloo", hyper=changed(off_policy_correction=correction))
    effective = load_train("rloo")(spec, policy_of(toy_model(0)), logged, RecordingRun(tmp_path, "rloo")).effective
    assert (effective["importance_cap"], effective["rejection_window"]) == expected


def test_without_a_weight_in_the_loss_kl_is_that_of_a_sample(tmp_path: Path) -> None:
    """An adapter that is continued: its reference is the base, from which it differs from the beginning."""
    logged = play(toy_model(0), 64, 4, torch.Generator().manual_seed(0))
    policy = with_lora(toy_model(0))
    for name, parameter in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    policy.fresh = False
    run = RecordingRun(tmp_path, "rloo")
    load_train("rloo")(job_spec("rloo", hyper=changed(full_finetune=False, kl_beta=0.0)), policy, logged, run)
    assert all(step.metrics.get("kl_divergence", 1.0) > 0 for step in run.steps)
    assert any("kl_divergence" in step.metrics for step in run.steps)
    assert run.steps[0].metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_ppo_learns_from_no_group_of_equal_rewards(tmp_path: Path) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    flat = [replace(one, reward=1.0) for one in logged[:28]]
    spec, run = job_spec("ppo", hyper=changed(learning_rate=1e-3)), RecordingRun(tmp_path, "ppo")
    mixed = [replace(one, reward=float(n)) for n, one in enumerate(logged[28:])]
    outcome = load_train("ppo")(spec, policy_of(toy_model(0)), [*flat, *mixed], run)
    assert (outcome.samples, outcome.metrics["zero_variance_groups"]) == (4, 7)
    with pytest.raises(DataUnusable, match="equal rewards"):
        load_train("ppo")(spec, policy_of(toy_model(0)), flat, RecordingRun(tmp_path, "ppo"))


def test_ppo_does_not_train_the_entropy_alone(tmp_path: Path) -> None:
    logged = [replace(one, reward=1.0) for one in play(toy_model(0), 16, 1, torch.Generator().manual_seed(0))]
    with pytest.raises(DataUnusable, match="equal rewards"):
        load_train("ppo")(job_spec("ppo", hyper=FULL), policy_of(toy_model(0)), logged, RecordingRun(tmp_path, "ppo"))


def test_every_train_step_counts_the_tokens_that_went_through_the_model(tmp_path: Path) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    run = RecordingRun(tmp_path, "rloo")
    load_train("rloo")(job_spec("rloo", hyper=FULL), policy_of(toy_model(0)), logged, run)
    assert all(step.metrics["tokens"] >= 6 for step in run.steps)


def test_data_of_another_policy_is_refused_before_anything_is_learnt(tmp_path: Path) -> None:
    """One token in a hundred has a tiny logged probability: the weights say nothing about the rest."""
    logged = play(toy_model(0), 25, 4, torch.Generator().manual_seed(0))
    logged[0] = replace(logged[0], logprobs=[-18.0, *logged[0].logprobs[1:]], reward=1.0)
    with pytest.raises(DataUnusable, match="off-policy: effective sample size 0"):
        load_train("rloo")(
            job_spec("rloo", hyper=FULL), policy_of(toy_model(0)), logged, RecordingRun(tmp_path, "rloo")
        )


def test_nothing_trainable_is_an_error_that_gives_the_reason(tmp_path: Path) -> None:
    logged = play(toy_model(0), 2, 2, torch.Generator().manual_seed(0))
    redacted = [
        replace(one, spans=[replace(span, trainable=False, reason="redacted") for span in one.spans]) for one in logged
    ]
    with pytest.raises(DataUnusable, match=r"redacted \(8\)"):
        load_train("rloo")(
            job_spec("rloo", hyper=FULL), policy_of(toy_model(0)), redacted, RecordingRun(tmp_path, "rloo")
        )


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    logged = play(toy_model(0), 8, 4, torch.Generator().manual_seed(0))
    hyper = Hyperparameters(learning_rate=1e30, batch_size=8, full_finetune=True, max_grad_norm=1e30)
    with pytest.raises(Diverged):
        load_train("rloo")(
            job_spec("rloo", hyper=hyper), policy_of(toy_model(0)), logged, RecordingRun(tmp_path, "rloo")
        )


def changed(**changes: Any) -> Hyperparameters:
    return replace(FULL, **changes)


def _with_dataset(spec: Any, dataset: Any) -> Any:
    return replace(spec, config=replace(spec.config, dataset=dataset))


def test_the_figures_of_a_job_are_those_of_the_policy_that_it_offers(tmp_path: Path) -> None:
    """Its one train step measured the policy that wrote the data; scored anew, the rows say how far that step went."""
    logged = play(toy_model(0), 32, 8, torch.Generator().manual_seed(0))
    run, model = RecordingRun(tmp_path, "rloo"), toy_model(0)
    hyper = replace(FULL, max_steps=1, batch_size=1000)
    outcome = load_train("rloo")(job_spec("rloo", hyper=hyper), policy_of(model), logged, run)
    (step,) = run.steps
    assert step.metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert step.metrics["ess"] == pytest.approx(1.0, abs=1e-5)
    assert outcome.metrics["approx_kl"] > 0.05
    assert outcome.metrics["ess"] < 0.95
    assert outcome.metrics["clip_fraction"] > step.metrics["clip_fraction"] == 0.0
    rows = policy_data(logged, None, mirrored=False).rows
    with torch.no_grad():
        entropy = Scorer(model).score(rows).entropy_N
    assert outcome.metrics["policy_entropy"] == pytest.approx(float(entropy.mean()), abs=0.02)
    assert (outcome.metrics["loss"], outcome.metrics["grad_norm"]) == (step.metrics["loss"], step.metrics["grad_norm"])
