"""The statuses of an attempt, and how it ends. Pure: events and instants in, statuses out."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ratchet.core.contract.state import ENDED, Job, JobState
from ratchet.core.contract.training import (
    Artifacts,
    BestMetrics,
    CurrentMetrics,
    ErrorCode,
    Metrics,
    Progress,
    ResourceUsage,
    StatusMetadata,
    TrainingDispatch,
    TrainingError,
    TrainingStatus,
)
from ratchet.trainer_worker.job import Event, Failed, Finished, Progressed, Saved, Started

COUNTS = frozenset({"candidates", "calls", "spent_tokens"})
"""Figures that are whole numbers."""


class StopReason(StrEnum):
    """Why a training is asked to stop before it is complete."""

    CANCELLED = "cancelled"
    CANCELLED_NOW = "cancelled now"
    """Without a further checkpoint."""
    FENCED = "fenced"
    """Another attempt owns the job: this one publishes nothing more."""
    SHUTDOWN = "shutdown"
    """This worker goes away: the job goes on elsewhere from the checkpoint."""
    TIMEOUT = "timeout"


URGENT: Mapping[StopReason | None, int] = {StopReason.CANCELLED_NOW: 1, StopReason.FENCED: 2}
"""Reasons that wait for no checkpoint, and take the place of others, by their rank."""
STOPPING: Mapping[StopReason | None, str] = {StopReason.CANCELLED: "after_step", StopReason.CANCELLED_NOW: "now"}
"""How a status says that a cancel was read."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Who runs an attempt."""

    name: str
    instance: str
    """The process: machines may have one hostname, and so their workers one name."""

    def owns(self, job: Job) -> bool:
        """Whether no other worker has the job's present attempt."""
        return job.worker in (None, self.name) and job.instance in (None, self.instance)


@dataclass(slots=True)
class Report:
    """What the worker knows of a running attempt, from its child's events."""

    started: Started | None = None
    progress: Progressed | None = None
    last: Event | None = None
    """The child's last word: finished, stopped or failed."""
    checkpoint: str | None = None
    """Uri of the newest uploaded checkpoint."""
    peak_memory_gb: float = 0.0
    step_s: float = 0.0
    """The longest train step so far."""
    save_s: float = 0.0
    """The longest wait of the training for a checkpoint so far."""

    def fold(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Started):
            self.started = event
        elif isinstance(event, Progressed):
            self.progress = event
            self.step_s = event.longest_step_s
        elif isinstance(event, Saved):
            self.save_s = max(self.save_s, event.took_s)
        else:
            self.last = event


def grace_s(report: Report, least_s: float) -> float:
    """How long a training that is asked to stop may take: to end its train step, and to save.

    Twice what both took at most so far, for steps differ; a first save is guessed to take as long as a step.
    """
    return least_s + 2 * (report.step_s + (report.save_s or report.step_s))


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How an attempt ended."""

    status: JobState
    error: TrainingError | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What all statuses of an attempt have in common."""

    dispatch: TrainingDispatch
    worker: Worker
    begun_at: datetime
    platform: str
    price_per_hour_usd: float | None = None
    """What an hour of this worker costs."""
    gpus: int = 0
    """GPUs of the attempt's slot: it holds them until the training says which it uses."""

    def usage(self, report: Report, now: datetime) -> ResourceUsage:
        """What the attempt has used so far."""
        seconds = max(0.0, (now - self.begun_at).total_seconds())
        gpus = self.gpus if report.started is None else report.started.gpus
        price = self.price_per_hour_usd
        return ResourceUsage(
            cost_usd=None if price is None else round(price * seconds / 3600, 6),
            gpu_hours=gpus * seconds / 3600,
            peak_memory_gb=round(report.peak_memory_gb, 3),
            total_training_time_seconds=round(seconds, 3),
            tokens=(report.progress.tokens or None) if report.progress is not None else None,
        )

    def status(
        self, kind: str, report: Report, now: datetime, artifacts: Artifacts | None = None, **more: Any
    ) -> TrainingStatus:
        """One status. `Any`: `more` are members of `TrainingStatus`."""
        request, started = self.dispatch.request, report.started
        snapshot = request.training_config.dataset.snapshot
        return TrainingStatus(
            training_job_id=self.dispatch.training_job_id,
            timestamp=now,
            status=kind,
            role=request.role,
            attempt=self.dispatch.attempt,
            progress=_progress(report.progress),
            metrics=_metrics(report),
            artifacts=artifacts or (Artifacts(checkpoint=report.checkpoint) if report.checkpoint else None),
            resource_usage=self.usage(report, now),
            metadata=StatusMetadata(
                training_platform=f"{self.platform} {started.device or 'cpu'}" if started else self.platform,
                cuda_version=started.cuda_version if started else None,
                pytorch_version=started.pytorch_version if started else None,
                worker=self.worker.name,
                instance=self.worker.instance,
                training_samples=started.samples if started else None,
            ),
            dataset_digest=snapshot.digest if snapshot else None,
            findings=(started.findings or None) if started else None,
            offer=request.offer,
            **more,
        )


@dataclass(frozen=True, slots=True)
class Exit:
    """How the child process ended."""

    code: int | None
    """Negative: the signal that killed it. None: what knew it, the fork server, died before."""
    oom_killed: bool = False
    log_tail: str = ""


def conclude(last: Event | None, exited: Exit, reason: StopReason | None) -> Conclusion | None:
    """The end of an attempt, or None when it must be silent. A finished policy counts even if a stop came meanwhile."""
    if reason is StopReason.FENCED:
        return None
    if isinstance(last, Finished):
        return Conclusion(JobState.COMPLETED)
    if reason in (StopReason.CANCELLED, StopReason.CANCELLED_NOW, StopReason.SHUTDOWN):
        return Conclusion(JobState.CANCELLED)
    if reason is StopReason.TIMEOUT:
        message = "the attempt took longer than this worker allows"
        return Conclusion(JobState.FAILED, TrainingError(code=ErrorCode.TIMEOUT, message=message))
    if isinstance(last, Failed):
        error = TrainingError(code=last.code, message=last.message, traceback=last.traceback, final=last.final)
        return Conclusion(JobState.FAILED, error)
    return Conclusion(JobState.FAILED, _crash(exited))


def must_stop(job: Job | None, attempt: int, worker: Worker) -> StopReason | None:
    """What the job's state says to a running attempt of `worker`. Without any state it goes on.

    Two workers may get one dispatch: the first whose status the coordinator reads has the attempt.
    """
    if job is None:
        return None
    if job.attempt > attempt or (job.attempt == attempt and (job.state in ENDED or not worker.owns(job))):
        return StopReason.FENCED
    if not job.cancel_requested:
        return None
    return StopReason.CANCELLED_NOW if job.cancel_now else StopReason.CANCELLED


def may_start(job: Job | None, attempt: int, worker: Worker) -> bool:
    """Whether a dispatch is still worth running: not overtaken, not ended, not run by another worker."""
    if job is None:
        return True
    if job.attempt != attempt:
        return job.attempt < attempt
    return job.state not in ENDED and worker.owns(job)


def _crash(exited: Exit) -> TrainingError:
    if exited.code is None:
        message = "the training process ended without a result, after the fork server that had made it"
        return TrainingError(code=ErrorCode.INFRA, message=message, traceback=exited.log_tail or None)
    if exited.code >= 0:
        message = f"the training process ended with status {exited.code} without a result"
        return TrainingError(code=ErrorCode.UNKNOWN, message=message, traceback=exited.log_tail or None)
    name = signal.Signals(-exited.code).name
    if exited.oom_killed:
        return TrainingError(
            code=ErrorCode.OOM, message=f"the system ran out of memory and ended the training ({name})"
        )
    return TrainingError(code=ErrorCode.INFRA, message=f"the training process was ended by {name}")


def _progress(event: Progressed | None) -> Progress | None:
    if event is None:
        return None
    return Progress(
        current_epoch=event.epoch,
        total_epochs=event.total_epochs,
        current_step=event.step,
        total_steps=event.total_steps,
        percent_complete=round(100.0 * event.step / event.total_steps, 2),
        eta_seconds=round(event.eta_s, 2),
    )


def _metrics(report: Report) -> Metrics | None:
    """Of the newest train step before its update; of a training that has finished what it says of its result."""
    event = report.progress
    if event is None:
        return None
    result = report.last.metrics if isinstance(report.last, Finished) else {}
    fields = CurrentMetrics.__struct_fields__
    known: dict[str, Any] = {name: value for name, value in (event.metrics | result).items() if name in fields}
    # Estimates of KL are non-negative but for rounding, and the contract holds them to that.
    if "kl_divergence" in known:
        known["kl_divergence"] = max(0.0, known["kl_divergence"])
    known |= {name: int(known[name]) for name in COUNTS & known.keys()}
    best = BestMetrics(step=event.best_step, epoch=event.best_epoch) if event.best_step is not None else None
    return Metrics(current=CurrentMetrics(**known), best=best) if known else None
