"""A request that cannot run is refused with sentences that say why."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from ratchet.core.contract.training import (
    Checkpointing,
    Compute,
    Dataset,
    DatasetFilter,
    DateRange,
    Evaluation,
    Hyperparameters,
    Lora,
    SnapshotRef,
    TrainingRequest,
)
from ratchet.core.rules.training_options import Amounts
from ratchet.rl_coordinator.jobs.domain.requests import Abilities, problems
from tests.support.training import AMOUNTS, after, config, request

ABILITIES = Abilities(training_enabled=True, algorithms=frozenset({"sft", "rloo", "ppo"}), amounts=AMOUNTS)
SNAPSHOT = SnapshotRef(uri="s3://b/s.json", digest="a" * 64)


def dataset(source: str = "clickhouse", **changes: Any) -> Dataset:
    return Dataset(source=source, sample_size=10, **changes)


def reasons_against(algorithm: str = "rloo", **changes: Any) -> list[str]:
    return problems(request(training_config=config(algorithm, **changes)), ABILITIES)


@pytest.mark.parametrize("algorithm", ["sft", "rloo", "ppo"])
def test_a_reasonable_request_has_no_problems(algorithm: str) -> None:
    assert reasons_against(algorithm, dataset=dataset(), compute=Compute(gpu_type="any")) == []


@pytest.mark.parametrize("name", ["ann\x1b[2J", "ann\nbob", "\u202eann", "a" * 501])
def test_requester_that_is_no_name_is_refused(name: str) -> None:
    assert any("requester must have" in reason for reason in problems(request(requester=name), ABILITIES))


def test_a_snapshot_can_be_trained_on_again() -> None:
    assert reasons_against(dataset=dataset("s3", snapshot=SNAPSHOT)) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "dpo"}, "algorithm 'dpo' is not offered"),
        ({"algorithm": "magic", "dataset": dataset(reward_transform="negate")}, "algorithm 'magic' is not offered"),
        ({"dataset": dataset("s3")}, "needs dataset.snapshot"),
        ({"dataset": dataset("local")}, "go around opt-outs"),
        ({"dataset": dataset("nats_stream", stream_name="RL_REWARDS")}, "stream_name is RL_TRAJECTORIES"),
        ({"dataset": dataset(stream_name="RL_TRAJECTORIES")}, "goes with dataset.source nats_stream"),
        ({"compute": Compute(gpu_type="a100")}, "placed by pool"),
        ({"checkpointing": Checkpointing(storage_path="s3://mine")}, "this installation's bucket"),
        ({"dataset": dataset(snapshot=SNAPSHOT)}, "dataset.source is clickhouse, not s3"),
        ({"dataset": dataset("s3", snapshot=SNAPSHOT, filter=DatasetFilter())}, "cannot be applied"),
        ({"dataset": dataset(reward_transform="square")}, "'square' is unknown"),
        ({"algorithm": "sft", "dataset": dataset(reward_transform="negate")}, "does nothing for sft"),
        (
            {"dataset": dataset(filter=DatasetFilter(date_range=DateRange(start=after(1), end=after(1))))},
            "is not before its end",
        ),
        ({"hyperparameters": Hyperparameters(full_finetune=True, lora=Lora())}, "goes with no lora"),
        ({"hyperparameters": Hyperparameters(learning_rate=0.0)}, "must be above 0"),
        ({"hyperparameters": Hyperparameters(rejection_window=[1.1, 0.9])}, "[low, high] around 1"),
        ({"hyperparameters": Hyperparameters(rejection_window=[0.9])}, "[low, high] around 1"),
        ({"algorithm": "sft", "hyperparameters": Hyperparameters(clip_epsilon=0.2)}, "no hyperparameter clip_epsilon"),
    ],
)
def test_each_problem_is_named(changes: dict[str, Any], reason: str) -> None:
    (problem,) = reasons_against(**changes)
    assert reason in problem


@pytest.mark.parametrize("evaluation", [Evaluation(metrics=["reward"]), Evaluation(benchmark_tasks=["airline"])])
def test_an_evaluation_that_no_job_does_is_refused_and_not_dropped(evaluation: Evaluation) -> None:
    (problem,) = problems(request(evaluation=evaluation), ABILITIES)
    assert "leave it out" in problem
    assert problems(request(evaluation=replace(evaluation, enabled=False)), ABILITIES) == []


def test_all_problems_are_named_at_once() -> None:
    both = reasons_against(dataset=dataset("local"), hyperparameters=Hyperparameters(learning_rate=-1.0))
    assert len(both) == 2


@pytest.mark.parametrize(
    ("algorithm", "rows", "reasons"),
    [
        ("rloo", 7, ["dataset.sample_size 7: rloo needs at least 8"]),
        ("ppo", 1, ["dataset.sample_size 1: ppo needs at least 8"]),
        ("rloo", 8, []),
        ("sft", 1, []),
        ("rloo", 200_000, []),
        ("rloo", 200_001, ["dataset.sample_size 200001 is more than the 200000 that a snapshot is chosen from"]),
        ("sft", 10**9, ["dataset.sample_size 1000000000 is more than the 200000 that a snapshot is chosen from"]),
    ],
)
def test_too_few_rows_to_learn_from_and_too_many_to_choose_are_refused(
    algorithm: str, rows: int, reasons: list[str]
) -> None:
    assert reasons_against(algorithm, dataset=Dataset(source="clickhouse", sample_size=rows)) == reasons


def test_the_sample_size_of_a_job_with_a_snapshot_does_not_matter() -> None:
    assert reasons_against(dataset=Dataset(source="s3", sample_size=1, snapshot=SNAPSHOT)) == []


@pytest.mark.parametrize(
    ("algorithm", "least"), [("rloo", 4), ("sft", 1), ("dpo", 4), ("kto", 4), ("gepa", 0), ("unknown", 1)]
)
def test_floor_is_for_algorithms_that_compare(algorithm: str, least: int) -> None:
    assert Amounts(most=9, fewest=4).least(algorithm) == least


def test_a_role_that_no_subject_can_carry_is_refused() -> None:
    (problem,) = problems(request(role="Support Desk"), ABILITIES)
    assert "Support Desk" in problem


def test_disabled_training_is_a_reason_of_its_own() -> None:
    off = Abilities(training_enabled=False, algorithms=ABILITIES.algorithms, amounts=AMOUNTS)
    assert problems(request(), off) == ["training is disabled here (RATCHET_COORDINATOR_TRAINING_ENABLED)"]


def full(algorithm: str = "rloo", role: str = "support") -> TrainingRequest:
    return request(role=role, training_config=config(algorithm, hyperparameters=Hyperparameters(full_finetune=True)))


def test_whole_model_is_refused_for_role_whose_engine_holds_adapters_only() -> None:
    vllm = dataclasses.replace(ABILITIES, engines={"support": "vllm", "*": "engine_local"})
    (problem,) = problems(full(), vllm)
    assert problem.startswith("full_finetune makes a whole model, and the engine of support (vllm) holds adapters")
    assert problems(full(role="sales"), vllm) == []
    assert problems(request(), vllm) == []
    assert problems(full(), dataclasses.replace(ABILITIES, engines={"*": "vllm"})) != []
    assert problems(full(), ABILITIES) == []


def test_a_reward_model_of_all_weights_is_trained_whatever_serves_the_role() -> None:
    able = dataclasses.replace(ABILITIES, engines={"*": "vllm"}, algorithms=ABILITIES.algorithms | {"reward_model"})
    assert not any("whole model" in problem for problem in problems(full("reward_model"), able))
