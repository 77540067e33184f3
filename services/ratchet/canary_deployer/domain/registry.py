"""Registering the result of a training job as the next version of its role."""

from __future__ import annotations

from datetime import datetime

from ratchet.canary_deployer.domain.serving import REGISTERED
from ratchet.kernel.artifacts import PolicyManifest
from ratchet.messages import TrainingStatus
from ratchet.messages.routing import parse_model, policy_name
from ratchet.messages.state import Job, PolicyVersion

DEPLOYABLE = frozenset({"adapter", "model"})
"""Kinds of artifact that can serve; a reward model, for example, cannot."""


def deployable(status: TrainingStatus) -> bool:
    """Whether a status announces a policy: a completed job with a policy manifest."""
    artifacts = status.artifacts
    if status.status != "completed" or artifacts is None:
        return False
    return artifacts.kind in DEPLOYABLE and bool(artifacts.final_checkpoint) and bool(artifacts.digest)


def fenced(status: TrainingStatus, job: Job | None) -> bool:
    """Whether the status is that of an attempt which is no longer the job's."""
    return job is not None and job.attempt > status.attempt


def new_version(
    status: TrainingStatus, version: int, manifest: PolicyManifest | None, job: Job | None, now: datetime
) -> PolicyVersion:
    """The next version of the role. Without a readable manifest only what the status says is known."""
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
        base_model=manifest.base_model if manifest else _requested_base(job),
        created_at=manifest.created_at if manifest else now,
        stage=REGISTERED,
        parent=_parent_version(job, status.role),
        training_job_id=status.training_job_id,
        dataset_digest=status.dataset_digest or (manifest.dataset_digest if manifest else None),
        training_samples=manifest.training_samples if manifest else None,
        final_reward=manifest.final_reward if manifest else None,
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
