"""The fields of before version 0.1, and the values that each takes and refuses; `invalid.json` has newer ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.contract_files import ABSENT, example, fast, oracle, with_member

NOT_UUID = ("", "42", "0199f3a17c427d109b1e2f6a4c8d0e11", "0199f3a1-7c42-7d10-9b1e-2f6a4c8d0e1g", 7, None)
NOT_INSTANT = ("", "2026-03-02", "2026-03-02T10:00:00", "2026-02-30T10:00:00Z", "10:00", 1740909900, None)
UUID = ("0199F3A1-7C42-7D10-9B1E-2F6A4C8D0E11", "5b1f7a44-2f0e-5c66-9d6c-31c1f3a6be10")
INSTANT = ("2026-03-02T10:00:00Z", "2026-03-02T10:00:00.123456+05:30")
TEXT = ("", "text", "文字")
NOT_TEXT = (1, True, None, [], {})
OBJECT = ({}, {"any": [1, {"thing": None}]})
NOT_OBJECT = ("{}", 1, [], None, True)
TEXTS = ([], ["a", "b"])
NOT_TEXTS = ("a", [1], [None], {}, None)
NOT_NUMBER = ("1", True, None, [])
NOT_INTEGER = (1.5, "1", True, None)
NOT_BOOLEAN = (0, 1, "true", None)


class Row(NamedTuple):
    """A member at a dotted path of the full example."""

    path: str
    required: bool
    taken: tuple[Any, ...]
    refused: tuple[Any, ...]


def must(path: str, taken: tuple[Any, ...], refused: tuple[Any, ...]) -> Row:
    """A required member."""
    return Row(path, True, taken, refused)


def may(path: str, taken: tuple[Any, ...], refused: tuple[Any, ...]) -> Row:
    """An optional member."""
    return Row(path, False, taken, refused)


def between(low: float | None, high: float | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(taken, refused) of a number within closed bounds."""
    inside = [bound for bound in (low, high) if bound is not None]
    outside = [low - 0.001] if low is not None else []
    outside += [high + 0.001] if high is not None else []
    return (*inside, (inside[0] + inside[-1]) / 2 if inside else -1e9), (*outside, *NOT_NUMBER)


def whole(low: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(taken, refused) of an integer with a least value."""
    return (low, low + 1, 10**9), (low - 1, *NOT_INTEGER)


def one_of(*values: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(taken, refused) of an enum."""
    return values, ("", "something_else", values[0].upper() + "x", 1, None)


ANY_NUMBER = (-1e9, 0, 2.5), NOT_NUMBER
DOMAINS = ("coding", "research", "data_analysis", "general", "debugging", "writing")
PROFILES = ("researcher", "developer", "hacker", "rl-trainer", None)
STATUS_METRICS = "metrics.current"

FIELDS: dict[str, list[Row]] = {
    "trajectory.v1": [
        must("trajectory_id", UUID, NOT_UUID),
        must("session_id", TEXT, NOT_TEXT),
        must("agent_id", ("agent-zero-main", "subordinate-researcher-1"), NOT_TEXT),
        may("subordinate_profile", (*PROFILES, "support-clerk"), (1, True, [])),
        must("start_timestamp", INSTANT, NOT_INSTANT),
        must("end_timestamp", INSTANT, NOT_INSTANT),
        must("turns", (), ([], {}, None, "[]")),
        must("turns.0.turn_id", *whole(1)),
        must("turns.0.timestamp", INSTANT, NOT_INSTANT),
        must("turns.0.observation", (), NOT_OBJECT),
        must(
            "turns.0.observation.type",
            *one_of("user_message", "tool_result", "subordinate_response", "system_message"),
        ),
        must("turns.0.observation.content", (*TEXT, *OBJECT, [{"type": "text", "text": "hi"}]), (1, True, None, [1])),
        may("turns.0.observation.context", ({},), NOT_OBJECT),
        may("turns.0.observation.context.memory_state", OBJECT, NOT_OBJECT),
        may("turns.0.observation.context.available_tools", TEXTS, NOT_TEXTS),
        may("turns.0.observation.context.subordinates_active", *whole(0)),
        may("turns.0.thought_process", TEXTS, NOT_TEXTS),
        must("turns.0.action", (), NOT_OBJECT),
        must("turns.0.action.type", *one_of("tool_call", "subordinate_call", "response", "memory_update")),
        may("turns.0.action.tool_name", TEXT, NOT_TEXT),
        may("turns.0.action.tool_args", OBJECT, NOT_OBJECT),
        may("turns.0.action.raw_response", TEXT, NOT_TEXT),
        must("turns.0.result", (), NOT_OBJECT),
        must("turns.0.result.success", (True, False), NOT_BOOLEAN),
        may("turns.0.result.output", (*TEXT, *OBJECT, None), (1, True, [])),
        may("turns.0.result.error", (*TEXT, None), (1, True, {})),
        may("turns.0.result.execution_time_ms", *between(0, None)),
        must("task_context", (), NOT_OBJECT),
        must("task_context.task_id", TEXT, NOT_TEXT),
        must("task_context.instructions", TEXT, NOT_TEXT),
        may("task_context.complexity_score", *between(0, 1)),
        may("task_context.domain", (*DOMAINS, "customer_service"), NOT_TEXT),
        must("metadata", (), NOT_OBJECT),
        must("metadata.model", TEXT, NOT_TEXT),
        may("metadata.temperature", *between(0, 2)),
        may("metadata.total_tokens", *whole(0)),
        may("metadata.total_cost_usd", *between(0, None)),
    ],
    "reward.v1": [
        must("reward_id", UUID, NOT_UUID),
        must("trajectory_id", UUID, NOT_UUID),
        must("session_id", TEXT, NOT_TEXT),
        must("timestamp", INSTANT, NOT_INSTANT),
        must("reward_components", ({},), NOT_OBJECT),
        *(
            may(f"reward_components.{name}", ({"score": 1, "weight": 1, "source": "human"},), ({}, 0.5, None))
            for name in ("task_completion", "efficiency", "code_quality", "user_feedback", "safety", "accuracy")
        ),
        may("reward_components.politeness", ({"score": 1, "weight": 0, "source": "human"},), (0.5, {"score": 1}, [])),
        must("reward_components.task_completion.score", *ANY_NUMBER),
        must("reward_components.task_completion.weight", *between(0, 1)),
        must(
            "reward_components.task_completion.source",
            *one_of("automated", "human", "linter", "test_results", "benchmark"),
        ),
        may("reward_components.task_completion.reasoning", TEXT, NOT_TEXT),
        may("reward_components.task_completion.raw_data", OBJECT, NOT_OBJECT),
        must("total_reward", *ANY_NUMBER),
        must("reward_type", *one_of("dense", "sparse")),
        may("normalization", ({},), NOT_OBJECT),
        may("normalization.method", *one_of("z-score", "min-max", "none")),
        may("normalization.mean", *ANY_NUMBER),
        may("normalization.std", *between(0, None)),
        may("normalization.min", *ANY_NUMBER),
        may("normalization.max", *ANY_NUMBER),
        must("metadata", (), NOT_OBJECT),
        must("metadata.evaluator", TEXT, NOT_TEXT),
        must("metadata.evaluation_method", *one_of("automated", "human", "hybrid", "model-based")),
        may("metadata.confidence", *between(0, 1)),
    ],
    "training.request.v1": [
        must("training_job_id", UUID, NOT_UUID),
        must("timestamp", INSTANT, NOT_INSTANT),
        must("requester", TEXT, NOT_TEXT),
        must("trigger_reason", *one_of("scheduled", "threshold_reached", "manual", "performance_degradation")),
        must("training_config", (), NOT_OBJECT),
        must(
            "training_config.algorithm",
            *one_of(
                *("ppo", "dpo", "rloo", "grpo", "reinforce"),
                *("sft", "reward_model", "kto", "planner_supervised", "planner_ppo"),
            ),
        ),
        must("training_config.base_model", TEXT, NOT_TEXT),
        must("training_config.dataset", (), NOT_OBJECT),
        must("training_config.dataset.source", *one_of("nats_stream", "clickhouse", "s3", "local")),
        must("training_config.dataset.sample_size", *whole(1)),
        may("training_config.dataset.stream_name", TEXT, NOT_TEXT),
        may("training_config.dataset.filter.min_reward", *ANY_NUMBER),
        may("training_config.dataset.filter.max_trajectory_length", *whole(1)),
        may("training_config.dataset.filter.max_staleness", *whole(0)),
        may("training_config.dataset.filter.balance_domains", (True, False), ("true", 1)),
        may("training_config.dataset.filter.date_range.start", INSTANT, NOT_INSTANT),
        may("training_config.dataset.filter.date_range.end", INSTANT, NOT_INSTANT),
        may("training_config.dataset.filter.task_domains", ([*DOMAINS], ["customer_service"], []), NOT_TEXTS),
        may("training_config.dataset.filter.exclude_subordinate_profiles", TEXTS, NOT_TEXTS),
        must("training_config.hyperparameters", ({},), NOT_OBJECT),
        may("training_config.hyperparameters.learning_rate", (1e-5, 1e-300, 1, 5), (0, -1e-5, "1e-5", None)),
        may("training_config.hyperparameters.batch_size", *whole(1)),
        may("training_config.hyperparameters.epochs", *whole(1)),
        may("training_config.hyperparameters.clip_epsilon", *between(0, None)),
        may("training_config.hyperparameters.gamma", *between(0, 1)),
        may("training_config.hyperparameters.gae_lambda", *between(0, 1)),
        may("training_config.compute.gpu_count", *whole(0)),
        may("training_config.compute.gpu_type", ("a100", "v100", "t4", "any", "h200"), NOT_TEXT),
        may("training_config.compute.distributed", (True, False), NOT_BOOLEAN),
        may("training_config.compute.mixed_precision", *one_of("fp32", "fp16", "bf16")),
        may("training_config.checkpointing.save_interval", *whole(1)),
        may("training_config.checkpointing.max_checkpoints", *whole(1)),
        may("training_config.checkpointing.storage_path", TEXT, NOT_TEXT),
        may("evaluation.enabled", (True, False), NOT_BOOLEAN),
        may("evaluation.holdout_size", *between(0, 1)),
        may(
            "evaluation.metrics",
            (["reward", "task_completion", "efficiency", "loss", "kl_divergence"], []),
            (["bleu"], "reward", [1]),
        ),
        may("evaluation.benchmark_tasks", TEXTS, NOT_TEXTS),
        may("priority", *one_of("low", "normal", "high", "urgent")),
        may("metadata.requested_by", TEXT, NOT_TEXT),
        may("metadata.notes", TEXT, NOT_TEXT),
        may("metadata.previous_training_job", (*UUID, None), ("", "job-1", 7)),
    ],
    "training.status.v1": [
        must("training_job_id", UUID, NOT_UUID),
        must("timestamp", INSTANT, NOT_INSTANT),
        must("status", *one_of("queued", "running", "completed", "failed", "cancelled")),
        may("progress", ({},), NOT_OBJECT),
        may("progress.current_epoch", *whole(0)),
        may("progress.total_epochs", *whole(1)),
        may("progress.current_step", *whole(0)),
        may("progress.total_steps", *whole(1)),
        may("progress.percent_complete", *between(0, 100)),
        may("progress.eta_seconds", *between(0, None)),
        may(f"{STATUS_METRICS}.loss", *ANY_NUMBER),
        may(f"{STATUS_METRICS}.reward_mean", *ANY_NUMBER),
        may(f"{STATUS_METRICS}.reward_std", *between(0, None)),
        may(f"{STATUS_METRICS}.policy_entropy", *ANY_NUMBER),
        may(f"{STATUS_METRICS}.kl_divergence", *between(0, None)),
        may(f"{STATUS_METRICS}.learning_rate", *between(0, None)),
        may("metrics.best.epoch", *whole(0)),
        may("metrics.best.step", *whole(0)),
        may("metrics.best.reward_mean", *ANY_NUMBER),
        may("metrics.best.checkpoint_path", TEXT, NOT_TEXT),
        may("evaluation_results.holdout_reward", *ANY_NUMBER),
        may("evaluation_results.benchmark_scores", ({}, {"a": 1.5}), ({"a": "1"}, [], None)),
        may("evaluation_results.improvement_over_baseline", *ANY_NUMBER),
        may("artifacts.final_checkpoint", TEXT, NOT_TEXT),
        may("artifacts.tensorboard_logs", TEXT, NOT_TEXT),
        may("artifacts.training_curves", TEXT, NOT_TEXT),
        may("artifacts.model_card", TEXT, NOT_TEXT),
        may("resource_usage.gpu_hours", *between(0, None)),
        may("resource_usage.cost_usd", *between(0, None)),
        may("resource_usage.peak_memory_gb", *between(0, None)),
        may("resource_usage.total_training_time_seconds", *between(0, None)),
        may("error.code", *one_of("OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN")),
        may("error.message", TEXT, NOT_TEXT),
        may("error.traceback", TEXT, NOT_TEXT),
        may("metadata.training_platform", TEXT, NOT_TEXT),
        may("metadata.cuda_version", TEXT, NOT_TEXT),
        may("metadata.pytorch_version", TEXT, NOT_TEXT),
    ],
    "model.deployed.v1": [
        must("deployment_id", UUID, NOT_UUID),
        must("training_job_id", UUID, NOT_UUID),
        must("timestamp", INSTANT, NOT_INSTANT),
        must("model_info", (), NOT_OBJECT),
        must("model_info.model_id", TEXT, NOT_TEXT),
        must("model_info.base_model", TEXT, NOT_TEXT),
        must("model_info.checkpoint_path", TEXT, NOT_TEXT),
        may("model_info.training_date", INSTANT, NOT_INSTANT),
        may("model_info.training_samples", *whole(1)),
        may("model_info.final_reward", *ANY_NUMBER),
        must("deployment_config", (), NOT_OBJECT),
        must("deployment_config.serving_platform", *one_of("tensorzero", "vllm", "tgi", "ollama")),
        must("deployment_config.endpoint", ("http://localhost:8000/v1", "urn:x:y"), ("", "no uri", "/v1", 1, None)),
        must("deployment_config.model_name", TEXT, NOT_TEXT),
        must("deployment_config.rollout_strategy", *one_of("canary", "blue_green", "immediate")),
        may("deployment_config.traffic_percentage", *between(0, 100)),
        may("deployment_config.ramp_schedule", ([],), ({}, [{}], None)),
        must("deployment_config.ramp_schedule.0.timestamp", INSTANT, NOT_INSTANT),
        must("deployment_config.ramp_schedule.0.percentage", *between(0, 100)),
        must("validation_results", (), NOT_OBJECT),
        must("validation_results.benchmark_passed", (True, False), NOT_BOOLEAN),
        must("validation_results.safety_checks_passed", (True, False), NOT_BOOLEAN),
        must("validation_results.performance_regression", (True, False), NOT_BOOLEAN),
        may("validation_results.not_compared", ([], ["performance_regression"]), (["latency"], "none", None)),
        may("validation_results.human_eval_score", *between(0, 1)),
        may("validation_results.benchmark_scores", ({}, {"a": -1}), ({"a": None}, [], None)),
        may("metadata", ({},), NOT_OBJECT),
        may("metadata.deployed_by", TEXT, NOT_TEXT),
        may("metadata.approval_status", *one_of("automated", "manual_approved", "emergency_override")),
        may("metadata.previous_model", TEXT, NOT_TEXT),
    ],
}

each_field = pytest.mark.parametrize(
    ("schema", "row"),
    [pytest.param(schema, row, id=f"{schema}-{row.path}") for schema, rows in FIELDS.items() for row in rows],
)


def judge(schema: str, path: str, values: tuple[Any, ...]) -> list[bool]:
    """The fast validator's verdict on every value; the (slow) oracle agrees on the first."""
    documents = [with_member(example(schema), path, value) for value in values]
    verdicts = [fast(schema).is_valid(document) for document in documents]
    assert [oracle(schema).is_valid(document) for document in documents[:1]] == verdicts[:1]
    return verdicts


@each_field
def test_a_field_takes_its_documented_values_and_no_others(schema: str, row: Row) -> None:
    assert judge(schema, row.path, row.taken) == [True] * len(row.taken)
    assert judge(schema, row.path, row.refused) == [False] * len(row.refused)
    assert judge(schema, row.path, (ABSENT,)) == [not row.required]


def test_a_failed_job_must_give_its_error() -> None:
    failed = with_member(example("training.status.v1"), "status", "failed")
    assert fast("training.status.v1").is_valid(failed)
    assert not fast("training.status.v1").is_valid(with_member(failed, "error", ABSENT))
