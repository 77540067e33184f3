"""Registering the result of a training job as the next version of its role."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ratchet.bus.message import Cause
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.policy_manifest import DEPLOYABLE, MODEL, PolicyManifest
from ratchet.core.contract.state import Job, PolicyStage, PolicyVersion
from ratchet.core.rules.arms import parse_model, policy_name
from ratchet.core.rules.engines import ADAPTERS_ONLY


def deployable(status: TrainingStatus) -> bool:
    """Whether a status announces a policy: a completed job with a policy manifest."""
    artifacts = status.artifacts
    if status.status != "completed" or artifacts is None:
        return False
    return artifacts.kind in DEPLOYABLE and bool(artifacts.final_checkpoint) and bool(artifacts.digest)


def fenced(status: TrainingStatus, job: Job | None) -> bool:
    """Whether the status is that of an attempt which a newer one of the job has replaced."""
    return job is not None and job.attempt > status.attempt


def new_version(
    status: TrainingStatus,
    job: Job | None,
    manifest: PolicyManifest | None,
    version: int,
    now: datetime,
    cause: Cause,
) -> PolicyVersion:
    """The next version of the role; `cause` is the status' own event. Without a readable manifest, what only it holds
    stays unknown."""
    artifacts = status.artifacts
    assert artifacts is not None  # noqa: S101 - `deployable` was asked first
    digest, base_model, parent = artifacts.digest or "", "unknown", None
    if job is not None:
        base_model = job.request.training_config.base_model
        parent = _version_of(job.parent, status.role)
    return PolicyVersion(
        role=status.role,
        version=version,
        name=policy_name(status.role, version, digest),
        digest=digest,
        uri=artifacts.final_checkpoint or "",
        kind=artifacts.kind or "",
        base_model=manifest.base_model if manifest else base_model,
        created_at=manifest.created_at if manifest else now,
        stage=PolicyStage.REGISTERED,
        parent=parent,
        training_job_id=status.training_job_id,
        dataset_digest=status.dataset_digest or (manifest.dataset_digest if manifest else None),
        training_samples=manifest.training_samples if manifest else None,
        final_reward=manifest.final_reward if manifest else None,
        algorithm=(manifest.algorithm if manifest else None) or (job.algorithm if job else None),
        metrics=dict(manifest.metrics) if manifest and manifest.metrics else None,
        cause=cause,
    )


def refused(policy: PolicyVersion, reason: str | None) -> PolicyVersion:
    """The policy, refused at its registration where there is a reason."""
    return policy if reason is None else msgspec.structs.replace(policy, stage=PolicyStage.REFUSED, reason=reason)


def unservable(status: TrainingStatus, engine: str | None) -> str | None:
    """Why the role's engine, of this kind, can never hold the policy of a completed job; None where it can."""
    if status.artifacts is None or status.artifacts.kind != MODEL or engine not in ADAPTERS_ONLY:
        return None
    return (
        f"it is a whole model, and the engine of {status.role} ({engine}) holds adapters of its one base model only: "
        "train an adapter (leave full_finetune out), or name an engine_local for the role in RATCHET_ENGINES and start "
        "the rollout of this version again"
    )


def _version_of(parent: str | None, role: str) -> int | None:
    """Version of the policy that a job continued from, if it was one of this role."""
    try:
        model = parse_model(parent) if parent is not None else None
    except ValueError:
        return None
    return model.version if model is not None and model.role == role else None
