"""Combinations that cannot be trained are refused with a reason each."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from ratchet.core.contract.training import (
    CallBudget,
    Compute,
    Dataset,
    Evaluation,
    HealthLimits,
    Hyperparameters,
    Lora,
    PromptSearch,
    TaskFileRef,
    TrainingConfig,
)
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import (
    evaluation_problems,
    most_steps,
    ramp_problem,
    request_problems,
    too_few_steps,
    training_problems,
)
from tests.support.training import request

OF_WEIGHTS = [name for name, algorithm in ALGORITHMS.items() if algorithm.trains_weights]


def config(algorithm: str = "rloo", compute: Compute | None = None, **hyper: Any) -> TrainingConfig:
    return TrainingConfig(
        algorithm=algorithm,
        base_model="base",
        dataset=Dataset(source="s3", sample_size=1),
        hyperparameters=Hyperparameters(**hyper),
        compute=compute,
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            config("best"),
            "unknown algorithm 'best'; known are sft, rloo, grpo, reinforce, ppo, dpo, reward_model, kto, gepa,"
            " planner_supervised, planner_ppo, selector_linucb, selector_thompson",
        ),
        (config("dpo", kl_beta=0.1), "dpo has no hyperparameter kl_beta"),
        (config("dpo", desirable_weight=2.0), "dpo has no hyperparameter desirable_weight"),
        (config("kto", label_smoothing=0.1), "kto has no hyperparameter label_smoothing"),
        (config("dpo", beta=0.0), "beta must be above 0, not 0"),
        (config("dpo", label_smoothing=0.5), "label_smoothing must lie in 0..0.5, 0.5 not included, not 0.5"),
        (config("dpo", center_rewards_coefficient=0.1), "dpo has no hyperparameter center_rewards_coefficient"),
        (
            config("reward_model", center_rewards_coefficient=-0.1),
            "center_rewards_coefficient must not be negative, not -0.1",
        ),
        (
            config("reward_model", lora=Lora(load_in_4bit=True)),
            "reward_model puts a head of its own on the model: load_in_4bit is not for it",
        ),
        (config("kto", batch_size=1), "kto compares the answers of a batch: its batch_size must be 2 or more"),
        (config("kto", undesirable_weight=-1.0), "undesirable_weight must not be negative, not -1"),
        (
            config("kto", desirable_weight=0.0, undesirable_weight=0.0),
            "desirable_weight and undesirable_weight are both 0: nothing would be learnt",
        ),
        (config("sft", gamma=0.9), "sft has no hyperparameter gamma"),
        (config("rloo", gae_lambda=0.9), "rloo has no hyperparameter gae_lambda"),
        (config("ppo", advantage_floor=0.2), "ppo has no hyperparameter advantage_floor"),
        (config(beta=0.1), "rloo has no hyperparameter beta"),
        (config(learning_rate=0.0), "learning_rate must be above 0, not 0"),
        (config(learning_rate=math.inf), "learning_rate must be a finite number"),
        (config(learning_rate=1e-10), "learning_rate 1e-10 changes no weight: it is less than a float32 resolves"),
        (
            config(warmup_steps=8, max_steps=8),
            "warmup_steps 8 is no less than the 8 train steps of this training, which would learn at a fraction of its"
            " rate: ask for fewer, or leave warmup_steps out",
        ),
        (config(lr_scheduler="polynomial"), "lr_scheduler must be one of linear, constant, cosine, not 'polynomial'"),
        (config(weight_decay=1.5), "weight_decay must lie in 0..1, not 1.5"),
        (config(batch_size=0), "batch_size must be above 0, not 0"),
        (config(batch_size=10**20), f"batch_size must be at most 1000000, not {10**20}"),
        (config(gradient_accumulation=10**7), "gradient_accumulation must be at most 1000000, not 10000000"),
        (config(epochs=10**9), "epochs must be at most 100000, not 1000000000"),
        (config(max_steps=10**10), "max_steps must be at most 1000000000, not 10000000000"),
        (config(max_length=99_999_999_999), "max_length must be at most 67108864, not 99999999999"),
        (config(pass_tokens=2**27), "pass_tokens must be at most 67108864, not 134217728"),
        (config(seed=2**32), "seed must be at most 4294967295, not 4294967296"),
        (config(lora=Lora(r=10**6)), "lora.r must be at most 1024, not 1000000"),
        (config("ppo", gamma=1.5), "gamma must lie in 0..1, not 1.5"),
        (config(kl_beta=-1.0), "kl_beta must not be negative, not -1"),
        (config("ppo", entropy_coefficient=-1.0), "entropy_coefficient must not be negative, not -1"),
        (config(full_finetune=True, lora=Lora()), "full_finetune trains every weight: it goes with no lora"),
        (config(lora=Lora(r=0)), "lora needs r of at least 1 and a dropout in 0..1"),
        (config(rejection_window=[1.1, 0.9]), "rejection_window must be [low, high] around 1, not [1.1, 0.9]"),
        (
            config(loss_normalization="mean"),
            "loss_normalization must be one of trajectory, token, constant, not 'mean'",
        ),
        (
            config(compute=Compute(distributed=True)),
            "compute.distributed: a training runs on one machine; gpu_count asks for more of its GPUs",
        ),
        (
            config(compute=Compute(mixed_precision="fp16")),
            "fp16 is not supported: use bf16, which needs no loss scaling",
        ),
    ],
)
def test_each_impossible_option_has_its_reason(given: TrainingConfig, reason: str) -> None:
    assert training_problems(given) == [reason]


@pytest.mark.parametrize(
    ("given", "rows", "steps"),
    [
        (config(), 128, 1),
        (config(epochs=3), 129, 6),
        (config(batch_size=4, gradient_accumulation=2), 17, 3),
        (config("sft", max_steps=5), 1000, 5),
        (config("sft", max_steps=500), 32, 500),
        (config(max_steps=500), 128, 1),
    ],
)
def test_train_steps_are_counted_before_there_is_a_job(given: TrainingConfig, rows: int, steps: int) -> None:
    assert most_steps(given, rows) == steps


def test_a_ramp_that_ends_before_the_training_is_no_problem() -> None:
    assert ramp_problem(None, 1) is ramp_problem(0, 1) is ramp_problem(1, 1) is ramp_problem(7, 8) is None


@pytest.mark.parametrize(
    ("given", "steps", "sentence"),
    [
        (config(), 1, "This training has 1 train step and moves no weight by more than 0.0003: expect no difference"),
        (config(learning_rate=1e-7), 9, "This training has 9 train steps and moves no weight by more than 9e-07"),
        (config(), 2, ""),
        (config("sft", learning_rate=1e-6), 11, ""),
        (config("gepa"), 1, ""),
    ],
)
def test_train_steps_that_can_show_nothing_are_warned_of(given: TrainingConfig, steps: int, sentence: str) -> None:
    warned = too_few_steps(given, steps)
    assert warned is None if not sentence else warned is not None and warned.startswith(sentence)


@pytest.mark.parametrize("algorithm", ["sft", "rloo", "grpo", "reinforce", "ppo", "dpo", "kto", "reward_model"])
def test_every_algorithm_of_weights_takes_a_scheduler_and_weight_decay(algorithm: str) -> None:
    assert not training_problems(config(algorithm, lr_scheduler="cosine", weight_decay=0.1))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if not ALGORITHMS[name].holds_out])
def test_a_hold_out_is_refused_where_no_weights_are_trained(algorithm: str) -> None:
    able = "sft, rloo, grpo, reinforce, ppo, dpo, reward_model, kto"
    assert evaluation_problems(algorithm, Evaluation(holdout_size=0.25)) == [
        f"{algorithm} holds nothing out: evaluation.holdout_size is for {able}"
    ]


def test_evaluations_of_nothing_are_refused() -> None:
    asked = request(training_config=config("dpo"), evaluation=Evaluation(eval_steps=5))
    most = "evaluation.holdout_size must be at most 0.5: what is held out is not learnt from"
    assert evaluation_problems("dpo", Evaluation(holdout_size=0.51)) == [most]
    reason = "evaluation.eval_steps does nothing where evaluation.holdout_size holds nothing out"
    assert request_problems(asked) == [reason]


@pytest.mark.parametrize(
    ("algorithm", "evaluation"),
    [
        ("dpo", Evaluation(holdout_size=0.25)),
        ("dpo", Evaluation(holdout_size=0.25, eval_steps=5)),
        ("sft", Evaluation(holdout_size=0.0)),
        ("sft", Evaluation(enabled=False, holdout_size=0.25)),
        ("sft", None),
    ],
)
def test_a_hold_out_that_is_kept_or_not_asked_for_is_fine(algorithm: str, evaluation: Evaluation | None) -> None:
    assert request_problems(request(training_config=config(algorithm), evaluation=evaluation)) == []


@pytest.mark.parametrize("algorithm", OF_WEIGHTS)
def test_every_algorithm_runs_with_its_defaults(algorithm: str) -> None:
    assert training_problems(config(algorithm)) == []


def test_hyperparameters_of_a_wrong_type_are_refused_when_read() -> None:
    for wrong in ({"learning_rate": "1e-5"}, {"batch_size": 2.5}, {"epochs": "3"}, {"full_finetune": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(wrong), type=Hyperparameters)


@pytest.mark.parametrize("algorithm", OF_WEIGHTS)
def test_a_limit_of_health_is_refused_where_nothing_measures_its_figure(algorithm: str) -> None:
    own = ALGORITHMS[algorithm].health_limits
    values: dict[str, Any] = {"min_ess": 0.2, "max_kl": 1.0, "max_loss_rise": 2.0, "independent_metric": "success"}
    for name in HealthLimits.__struct_fields__:
        if name == "enabled":
            continue
        watched = msgspec.structs.replace(config(algorithm), health=HealthLimits(**{name: values.get(name, 0.5)}))
        refusal = f"{algorithm} does not measure what health.{name} is a limit of; it has {', '.join(sorted(own))}"
        assert training_problems(watched) == ([] if name in own else [refusal])
    off = msgspec.structs.replace(config(algorithm), health=HealthLimits(enabled=False))
    assert training_problems(off) == []


def test_an_algorithm_without_stops_refuses_limits() -> None:
    bare = dataclasses.replace(ALGORITHMS["sft"], health_limits=frozenset())
    watched = msgspec.structs.replace(config("sft"), health=HealthLimits(max_loss_rise=1.0))
    assert training_problems(watched, {"sft": bare}) == ["sft does not watch its health: leave `health` out"]


FILES = [TaskFileRef(uri=f"s3://ratchet/blobs/{digit * 64}.jsonl", sha256=digit * 64) for digit in "ab"]
SEARCH = PromptSearch(
    reflector="reflector", train_tasks=FILES[0], validation_tasks=FILES[1], budget=CallBudget(calls=100)
)


def search(**changes: Any) -> TrainingConfig:
    given = msgspec.structs.replace(config("gepa"), base_model="stable", prompts=SEARCH)
    return msgspec.structs.replace(given, **changes)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (search(prompts=None), "gepa needs `prompts`: a reflector, train_tasks, validation_tasks and a budget"),
        (
            search(base_model="Qwen/Qwen3-0.6B"),
            "gepa starts from what serves the role: base_model (`--base-model`) must be `stable`",
        ),
        (
            search(compute=Compute(gpu_count=1)),
            "gepa asks models over the gateway: leave compute and checkpointing out",
        ),
        (search(hyperparameters=Hyperparameters(learning_rate=1e-5)), "gepa has no hyperparameter learning_rate"),
        (
            search(prompts=msgspec.structs.replace(SEARCH, validation_tasks=FILES[0])),
            "prompts: train_tasks and validation_tasks are the same file; a prompt is chosen by other tasks",
        ),
        (
            search(prompts=msgspec.structs.replace(SEARCH, reflector="openai/")),
            "prompts.reflector is UPSTREAM/MODEL, or a role or a policy: 'openai/' is not",
        ),
        (
            msgspec.structs.replace(config("sft"), prompts=SEARCH),
            "prompts: sft trains weights; leave `prompts` out",
        ),
    ],
)
def test_search_that_lacks_something_is_refused_in_words(given: TrainingConfig, reason: str) -> None:
    assert training_problems(given) == [reason]


def test_search_with_tasks_and_a_budget_can_run() -> None:
    assert training_problems(search()) == []
    resolved = f"s3://ratchet/policies/{'c' * 64}.json"
    assert training_problems(search(base_model=resolved)) == []
