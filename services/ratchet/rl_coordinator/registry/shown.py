"""Policies for people and programs outside."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ratchet.contract.http.models import ModelOut, RoleModelsOut, TrainingOut
from ratchet.contract.state import Job, PolicyVersion, Route, registry_stage


def model_out(policy: PolicyVersion, route: Route | None) -> ModelOut:
    """A policy, and where it stands by the role's route."""
    shown = {
        **msgspec.structs.asdict(policy),
        "stage": registry_stage(policy, route),
        "status": policy.status,
        "state": policy.stage,
        "event_id": policy.cause.event_id if policy.cause else None,
    }
    return msgspec.convert(shown, ModelOut)


def role_models_out(
    role: str, route: Route | None, versions: Mapping[int, PolicyVersion], jobs: list[Job]
) -> RoleModelsOut:
    """A role's registry; `jobs`: its own, newest first."""
    made = {policy.training_job_id for policy in versions.values()}
    unmade = [job for job in jobs if job.policy_status is not None and job.training_job_id not in made]
    return RoleModelsOut(
        role=role,
        production=route.stable.name if route and route.stable else None,
        canary=route.canary.policy.name if route and route.canary else None,
        previous=route.previous.name if route and route.previous else None,
        versions=[model_out(versions[number], route) for number in sorted(versions)],
        training=[_training_out(job) for job in unmade[:20]],
    )


def _training_out(job: Job) -> TrainingOut:
    return TrainingOut(
        training_job_id=job.training_job_id,
        algorithm=job.algorithm,
        status=job.policy_status or "",
        state=job.state,
        created_at=job.created_at,
        error=job.error.message if job.error else None,
    )
