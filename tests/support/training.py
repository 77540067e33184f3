"""Builders of training requests, jobs, policies, turns and trajectories for tests of the coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.message import named_id
from ratchet.bus.received import Received
from ratchet.core.contract.reward import Reward, RewardComponent, RewardFunction, RewardMetadata
from ratchet.core.contract.state import POLICIES, Job, PolicyVersion, Route, ServedPolicy
from ratchet.core.contract.training import (
    Dataset,
    DatasetFilter,
    Hyperparameters,
    TrainingConfig,
    TrainingDispatch,
    TrainingRequest,
)
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    Outcome,
    PolicyClaim,
    TaskContext,
    Trajectory,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.contract.turn import EngineInfo, PromptTokens, Sampling, Trainable, Turn, Usage
from ratchet.core.rules.recorded import ids_digest
from ratchet.core.rules.training_options import Amounts
from ratchet.rl_coordinator.jobs.domain.jobs import Counted, accept

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


AMOUNTS = Amounts(most=200_000, fewest=8)
"""As the coordinator's settings have them."""


def config(algorithm: str = "rloo", base_model: str = "stable", **changes: Any) -> TrainingConfig:
    dataset = changes.pop("dataset", Dataset(source="clickhouse", sample_size=100, filter=DatasetFilter()))
    hyperparameters = changes.pop("hyperparameters", Hyperparameters(learning_rate=1e-4, batch_size=8))
    given = {"dataset": dataset, "hyperparameters": hyperparameters, **changes}
    return TrainingConfig(algorithm=algorithm, base_model=base_model, **given)


def request(name: str = "job", role: str = "support", **changes: Any) -> TrainingRequest:
    values: dict[str, Any] = {
        "training_job_id": named_id("test", name),
        "timestamp": NOON,
        "requester": "test",
        "trigger_reason": "manual",
        "training_config": config(),
        "role": role,
    }
    return TrainingRequest(**{**values, **changes})


def job(name: str = "job", *, state: str = "queued", attempt: int = 1, announced: bool = True, **changes: Any) -> Job:
    asked = changes.pop("request", None) or request(name, priority=changes.get("priority", "normal"))
    fresh = accept(asked, pool="default", counted=Counted(), now=changes.pop("created_at", NOON))
    announcement = f"{attempt}:{state}" if announced else None
    return msgspec.structs.replace(fresh, state=state, attempt=attempt, announced=announcement, **changes)


def registered(version: int, **changes: Any) -> PolicyVersion:
    """A registered adapter of the role `support`."""
    values: dict[str, Any] = {
        "role": "support",
        "version": version,
        "name": f"support@{version}-dddddddd",
        "digest": "d" * 64,
        "uri": f"s3://b/policies/{version}.json",
        "kind": "adapter",
        "base_model": "org/model",
        "created_at": after(version),
        "stage": "registered",
    }
    return PolicyVersion(**{**values, **changes})


async def promote(bus: Bus, policy: PolicyVersion) -> None:
    """Register a policy and make it the role's stable one."""
    await Bucket(bus, POLICIES, PolicyVersion).put(f"{policy.role}.{policy.version}", policy)
    served = ServedPolicy(version=policy.version, name=policy.name, digest=policy.digest)
    route = Route(role=policy.role, stable=served, next_version=policy.version + 1)
    await Bucket(bus, POLICIES, Route).put(policy.role, route)


def received(dispatch: TrainingDispatch) -> Received[TrainingDispatch]:
    """A dispatch as it comes off the work queue."""
    return Received(
        message=dispatch,
        subject=dispatch.subject,
        stream="RL_JOBS",
        sequence=1,
        delivered=1,
        event_id=dispatch.event_id,
        time=dispatch.timestamp,
        correlation_id=dispatch.request.event_id,
    )


def turn(
    trajectory_id: str, index: int, *, parent: Turn | None = None, full_prompt: Sequence[int] = (), **changes: Any
) -> Turn:
    """A trainable call. With `parent` its prompt is stored as a delta to the parent's prompt and output."""
    prefix = changes.pop("prefix", [])
    values: dict[str, Any] = {
        "turn_id": named_id(trajectory_id, index),
        "trajectory_id": trajectory_id,
        "timestamp": after(index),
        "index": index,
        "role": "support",
        "request_digest": "0" * 64,
        "messages": [{"role": "user", "content": f"question {index}"}],
        "response": {"content": f"answer {index}"},
        "policy": PolicyClaim(role="support", version=1, digest="d" * 64, arm="stable", weight=0.0),
        "engine": EngineInfo(name="test"),
        "trainable": Trainable(ok=True),
        "parent_turn_id": parent.turn_id if parent else None,
        "prompt_token_ids": prompt_delta(full_prompt, prefix),
        "output_token_ids": [100 + index, 200 + index],
        "behavior_logprobs": [-0.5, -0.25],
        "logprob_mode": "processed",
        "sampling": Sampling(temperature=0.7),
        "usage": Usage(prompt=len(full_prompt), completion=2),
    }
    return Turn(**{**values, **changes})


def prompt_delta(full: Sequence[int], prefix: Sequence[int]) -> PromptTokens:
    if not prefix:
        return PromptTokens(suffix=list(full))
    return PromptTokens(
        suffix=list(full[len(prefix) :]), prefix_length=len(prefix), prefix_digest=ids_digest(list(prefix))
    )


def conversation(trajectory_id: str, lengths: Sequence[int], **changes: Any) -> tuple[list[Turn], list[list[int]]]:
    """Calls of one growing conversation, and the full prompt of each. `lengths`: new prompt ids before each call."""
    turns: list[Turn] = []
    prompts: list[list[int]] = []
    known: list[int] = []
    for index, length in enumerate(lengths):
        prompt = known + [1000 * index + n for n in range(length)]
        parent = turns[-1] if turns else None
        turns.append(turn(trajectory_id, index, parent=parent, full_prompt=prompt, prefix=known, **changes))
        prompts.append(prompt)
        known = [*prompt, 100 + index, 200 + index]
    return turns, prompts


def trajectory(
    trajectory_id: str, *, turns: Sequence[Turn] = (), success: bool = True, at: datetime = NOON, **changes: Any
) -> Trajectory:
    """An assembled trajectory that refers to `turns`, or a client's own when there are none."""
    refs: Sequence[str | None] = [each.turn_id for each in turns] or [None]
    values: dict[str, Any] = {
        "trajectory_id": trajectory_id,
        "session_id": "session",
        "agent_id": "agent",
        "role": "support",
        "start_timestamp": at,
        "end_timestamp": at,
        "turns": [_entry(number, ref, at) for number, ref in enumerate(refs, start=1)],
        "task_context": TaskContext(task_id="task", instructions="Help."),
        "metadata": TrajectoryMetadata(model="m", source="assembled" if turns else "client"),
        "outcome": Outcome(status="success" if success else "failure", verified_by="environment"),
    }
    return Trajectory(**{**values, **changes})


def _entry(number: int, ref: str | None, at: datetime) -> TrajectoryTurn:
    return TrajectoryTurn(
        turn_id=number,
        timestamp=at,
        observation=Observation(type="user_message", content="question"),
        action=Action(type="response", raw_response="answer"),
        result=TurnResult(success=True),
        turn_ref=ref,
    )


def reward(of: Trajectory, total: float, *, revision: int = 0, at: datetime = NOON) -> Reward:
    component = RewardComponent(score=total, weight=1.0, source="automated")
    return Reward(
        reward_id=named_id("reward", of.trajectory_id, revision),
        trajectory_id=of.trajectory_id,
        session_id=of.session_id,
        timestamp=at,
        reward_components={"task_completion": component},
        total_reward=total,
        reward_type="sparse",
        metadata=RewardMetadata(evaluator="test", evaluation_method="automated"),
        role=of.role,
        revision=revision,
        reward_function=RewardFunction(name="default", version="1"),
    )


def changed(value: Any, **changes: Any) -> Any:
    """A copy of a struct with other members. `Any`: of whichever type came in."""
    return msgspec.structs.replace(value, **changes)
