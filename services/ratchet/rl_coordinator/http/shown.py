"""Jobs for people and programs outside."""

from __future__ import annotations

import msgspec

from ratchet.contract.http.jobs import JobOut
from ratchet.contract.http.status import JobBrief
from ratchet.contract.state import Job


def job_out(job: Job) -> JobOut:
    """A job with all that is not the coordinator's own bookkeeping."""
    return msgspec.convert(job, JobOut, from_attributes=True)


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
