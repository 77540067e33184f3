"""What the HTTP API says about the state of training and of learning from preferences."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from ratchet.contract.state import Job
from ratchet.rl_coordinator.http.models import SlotsOut


class JobBrief(BaseModel):
    """A job in one line."""

    training_job_id: str
    role: str
    algorithm: str
    state: str
    created_at: datetime
    percent_complete: float | None = None
    eta_s: float | None = None
    loss: float | None = None
    reward_mean: float | None = None
    finished_at: datetime | None = None
    error: str | None = None


class TrainingStatusOut(BaseModel):
    """What trains now, what waits, and how the last trainings ended."""

    training_enabled: bool
    algorithms: list[str]
    slots: dict[str, SlotsOut]
    jobs: dict[str, int] = Field(description="Jobs that are kept, by state.")
    active: list[JobBrief] = Field(description="Dispatched or running.")
    waiting: list[JobBrief] = Field(description="Queued, in the order in which they will be served; at most 100.")
    longest_wait_s: float
    last: dict[str, JobBrief] = Field(description="By role: its newest job that has ended.")


class DpoRoleOut(BaseModel):
    """Where a role stands with preferences."""

    pairs: dict[str, int] = Field(description="Stored preferences by source.")
    total: int
    since_last_dpo: int = Field(description="Preferences that came since the last job that learns from pairs.")
    threshold: int | None = Field(None, description="New preferences that start a training; null: by hand only.")
    would_fire: bool = Field(description="Whether there is enough for the trigger, which fires once all is stored.")
    last_job: JobBrief | None = None
    newest_policy: str | None = Field(None, description="The newest ready policy that learned from pairs.")


class DpoStatusOut(BaseModel):
    roles: dict[str, DpoRoleOut]


def brief(job: Job) -> JobBrief:
    """A job in one line."""
    progress, measured = job.progress, job.metrics
    return JobBrief(
        training_job_id=job.training_job_id,
        role=job.role,
        algorithm=job.algorithm,
        state=job.state,
        created_at=job.created_at,
        percent_complete=progress.percent_complete if progress else None,
        eta_s=progress.eta_seconds if progress else None,
        loss=measured.loss if measured else None,
        reward_mean=measured.reward_mean if measured else None,
        finished_at=job.finished_at,
        error=job.error.message if job.error else None,
    )
