"""A training job in facts and figures, as a person reads them: what was asked for, measured and used. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec

from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.contract.state import Job
from ratchet.core.contract.training import ResourceUsage
from ratchet.core.rules.algorithms import unit_of
from ratchet.core.rules.figures import FIGURES
from ratchet.core.rules.training_options import holdout_of

N = TypeVar("N", int, float)


def job_out(job: Job, now: datetime) -> JobOut:
    """A job with all that is not the coordinator's own bookkeeping."""
    shown = msgspec.convert(job, JobOut, from_attributes=True)
    return msgspec.structs.replace(shown, queue_wait_s=queue_wait_s(job, now), resource_usage=usage_of(job))


def queue_wait_s(job: Job, now: datetime) -> float:
    """Seconds from a job's creation to its first slot; one that has none yet waits until `now` or its end."""
    until = job.dispatched_at or job.started_at or job.finished_at or now
    return max(0.0, (until - job.created_at).total_seconds())


def usage_of(job: Job) -> ResourceUsage | None:
    """What all attempts of a job used together, as far as their workers said."""
    if job.resource_usage is None or job.spent is None:
        return job.resource_usage or job.spent
    return ResourceUsage(
        gpu_hours=_sum(job.resource_usage.gpu_hours, job.spent.gpu_hours),
        cost_usd=_sum(job.resource_usage.cost_usd, job.spent.cost_usd),
        peak_memory_gb=max(job.resource_usage.peak_memory_gb or 0.0, job.spent.peak_memory_gb or 0.0),
        total_training_time_seconds=_sum(
            job.resource_usage.total_training_time_seconds, job.spent.total_training_time_seconds
        ),
        tokens=_sum(job.resource_usage.tokens, job.spent.tokens),
    )


def facts_of(job: JobOut) -> dict[str, object]:
    """What is known of a job besides figures; None: not known. A tuple: a line for each."""
    config, error = job.request.training_config, job.error
    notes = job.request.metadata.notes if job.request.metadata else None
    hyperparameters: dict[str, object] = msgspec.to_builtins(config.hyperparameters)
    return {
        "job": job.training_job_id,
        "role": job.role,
        "algorithm": job.algorithm,
        "state": state_of(job),
        "error": f"{error.code}: {error.message}" if error else None,
        "stopped early": job.health_stop.message if job.health_stop else None,
        "findings": tuple(job.findings) if job.findings else None,
        "attempt": job.attempt or None,
        "base model": config.base_model,
        "continues": job.parent,
        unit_of(job.algorithm): job.trajectories,
        "worker": job.worker,
        "created": job.created_at,
        "waited": f"{job.queue_wait_s:.0f} s",
        "source": config.dataset.source,
        "held out": holdout_of(job.request.evaluation) or None,
        "offered": None if job.request.offer else "no",
        "starts within (UTC)": job.request.start_hours if job.state == "queued" else None,
        "started": job.started_at,
        "finished": job.finished_at,
        "notes": notes or None,
        **hyperparameters,
    }


def figures_of(job: JobOut) -> dict[str, float]:
    """What was measured at a job's last train step and on what was held out, and what all its attempts used."""
    held = job.evaluation_results
    scores: dict[str, float] = dict((held.benchmark_scores if held else None) or {})
    if held is not None and held.improvement_over_baseline is not None:
        scores["improvement_over_baseline"] = held.improvement_over_baseline
    measured: dict[str, float] = {} if job.metrics is None else msgspec.to_builtins(job.metrics)
    used: dict[str, float | None] = {} if job.resource_usage is None else msgspec.to_builtins(job.resource_usage)
    return measured | scores | {name: value for name, value in used.items() if value is not None}


def sentence_of(name: str, value: float) -> str | None:
    """What a figure is, what is good and what is bad, after a word where this value is bad; None: it is unknown."""
    figure = FIGURES.get(name)
    return None if figure is None else f"BAD: {figure.sentence}" if figure.is_bad(value) else figure.sentence


def state_of(job: JobOut) -> str:
    """The state of a job, and whether it is to be cancelled."""
    if not job.cancel_requested or job.state == "cancelled":
        return job.state
    asked = "an end at once requested" if job.cancel_now else "cancel requested"
    return f"{job.state}, {asked}{', which its worker has read' if job.stopping else ''}"


def _sum(one: N | None, other: N | None) -> N | None:
    return one if other is None else other if one is None else one + other
