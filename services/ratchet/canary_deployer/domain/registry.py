"""Registering the result of a training job as the next version of its role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ratchet.bus.message import Cause
from ratchet.contract import TrainingStatus
from ratchet.contract.state import Job, PolicyStage, PolicyVersion
from ratchet.rules.arms import parse_model, policy_name

DEPLOYABLE = frozenset({"adapter", "model"})
"""Kinds of artifact that can serve; a reward model, for example, cannot."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a policy's manifest says about how it came to be."""

    base_model: str
    created_at: datetime
    dataset_digest: str | None
    training_samples: int | None
    final_reward: float | None
    algorithm: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


def deployable(status: TrainingStatus) -> bool:
    """Whether a status announces a policy: a completed job with a policy manifest."""
    artifacts = status.artifacts
    if status.status != "completed" or artifacts is None:
        return False
    return artifacts.kind in DEPLOYABLE and bool(artifacts.final_checkpoint) and bool(artifacts.digest)


def fenced(status: TrainingStatus, job: Job | None) -> bool:
    """Whether the status is that of an attempt which is no longer the job's."""
    return job is not None and job.attempt > status.attempt


@dataclass(frozen=True, slots=True)
class Announced:
    """A completed job as the deployer hears of it."""

    status: TrainingStatus
    job: Job | None
    cause: Cause
    """The status' own event."""


def new_version(announced: Announced, version: int, origin: Origin | None, now: datetime) -> PolicyVersion:
    """The next version of the role. Without a readable manifest only what status and job say is known."""
    status, job = announced.status, announced.job
    artifacts = status.artifacts
    assert artifacts is not None  # noqa: S101 - `deployable` was asked first
    digest = artifacts.digest or ""
    return PolicyVersion(
        role=status.role,
        version=version,
        name=policy_name(status.role, version, digest),
        digest=digest,
        uri=artifacts.final_checkpoint or "",
        kind=artifacts.kind or "",
        base_model=origin.base_model if origin else _requested_base(job),
        created_at=origin.created_at if origin else now,
        stage=PolicyStage.REGISTERED,
        parent=_parent_version(job, status.role),
        training_job_id=status.training_job_id,
        dataset_digest=status.dataset_digest or (origin.dataset_digest if origin else None),
        training_samples=origin.training_samples if origin else None,
        final_reward=origin.final_reward if origin else None,
        algorithm=(origin.algorithm if origin else None) or (job.algorithm if job else None),
        metrics=dict(origin.metrics) if origin and origin.metrics else None,
        cause=announced.cause,
    )


def _requested_base(job: Job | None) -> str:
    return job.request.training_config.base_model if job else "unknown"


def _parent_version(job: Job | None, role: str) -> int | None:
    """Version of the policy that the job continued from, if it was one of this role."""
    if job is None or job.parent is None:
        return None
    try:
        parent = parse_model(job.parent)
    except ValueError:
        return None
    return parent.version if parent.role == role else None
