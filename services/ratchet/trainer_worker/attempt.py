"""One attempt of a job, from its dispatch to its final status: a child process that is watched, and a heartbeat."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from msgspec.structs import replace

from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.bus.tasks import end
from ratchet.contract import Message, TrainingDispatch, TrainingStatus
from ratchet.contract.state import Job
from ratchet.contract.training import Artifacts, TrainingError
from ratchet.errors import ContractError, RatchetError, Rejected, Unavailable
from ratchet.rules.training_options import request_problems
from ratchet.stores.objects import Objects
from ratchet.trainer_worker import metrics
from ratchet.trainer_worker.child_process import Child, WarmStart
from ratchet.trainer_worker.domain import (
    COMPLETED,
    FAILED,
    RUNNING,
    Conclusion,
    Exit,
    Frame,
    Report,
    StopReason,
    conclude,
    must_stop,
)
from ratchet.trainer_worker.errors import TimedOut, error_code
from ratchet.trainer_worker.job import Finished, Saved
from ratchet.trainer_worker.s3_artifacts import (
    Inputs,
    artifacts_of,
    fetch_inputs,
    store_checkpoint,
    store_metrics,
    store_policy,
)
from ratchet.trainer_worker.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")


class Publish(Protocol):
    """`bus.Bus.publish`: store a message as the answer to the one that caused it."""

    def __call__(self, message: Message, *, cause: Received[Message] | None = None) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What attempts work with."""

    publish: Publish
    jobs: Bucket[Job]
    objects: Objects
    settings: Settings
    now: Callable[[], datetime]
    warm: WarmStart | None = None
    """Makes training processes that need not import anything; without it every one is fresh."""


class Attempt:
    """Runs once. `launched` is set when the child runs, or when it is clear that it never will."""

    def __init__(self, received: Received[TrainingDispatch], tools: Tools) -> None:
        self.dispatch = dispatch = received.message
        self._cause = received
        self.launched = asyncio.Event()
        self._tools = tools
        self._report = Report()
        self._reason: StopReason | None = None
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._directory = tools.settings.work / f"{dispatch.training_job_id}-{dispatch.attempt}"
        self._saved: Saved | None = None
        self._uploading = asyncio.Lock()
        self._frame = Frame(
            dispatch=dispatch,
            worker=tools.settings.worker,
            begun_at=tools.now(),
            platform=f"{platform.system().lower()}-{platform.machine()}",
            price_per_hour_usd=tools.settings.price_per_hour_usd,
        )

    @property
    def has_child(self) -> bool:
        """Whether the training process was started."""
        return self._child is not None

    def running_status(self) -> TrainingStatus:
        """Where the attempt is now."""
        return self._frame.status(RUNNING, self._report, self._tools.now())

    def request_stop(self, reason: StopReason) -> None:
        """Ask the training to stop; the first reason counts, but a fence silences whatever was said before."""
        if self._reason is None or reason is StopReason.FENCED:
            self._reason = reason
        if not self._stopping.is_set():
            self._stopping.set()
            log.info("stopping a training", job=self.dispatch.training_job_id, reason=str(reason))

    async def run(self) -> None:
        """Train, and say how it ended. Whatever goes wrong becomes the final status."""
        beside = [asyncio.create_task(work()) for work in (self._beat, self._watch, self._end_child)]
        log.info("training begins", job=self.dispatch.training_job_id, attempt=self.dispatch.attempt)
        try:
            final = await self._train()
        except Exception as error:  # noqa: BLE001 - the boundary of an attempt: whatever broke is its result
            final = self._failure(error)
        finally:
            self.launched.set()
            try:
                await end(*beside)
            finally:
                if self._child is not None:
                    self._child.kill()
        if final is not None:
            await self._say(final)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def _train(self) -> TrainingStatus | None:
        """The final status, or None when another attempt owns the job."""
        request = self.dispatch.request
        problems = request_problems(request)
        if problems:
            raise Rejected("; ".join(problems))
        if request.deadline is not None and self._tools.now() > request.deadline:
            raise TimedOut(f"the deadline {request.deadline.isoformat()} passed before the training began")
        inputs = await self._prepare()
        exited = Exit(code=0)
        if not self._stopping.is_set():
            self._child = await Child.start(inputs.spec, self._directory, self._tools.warm)
            self.launched.set()
            exited = await self._follow(self._child)
        conclusion = conclude(self._report.last, exited, self._reason)
        if conclusion is None:
            return None
        curves = await self._patiently(lambda: store_metrics(self._tools.objects, self._directory))
        artifacts = Artifacts(checkpoint=self._report.checkpoint, training_curves=curves)
        if conclusion.status == COMPLETED:
            published = await self._publish(inputs, curves)
            if published is None:
                return None
            artifacts = published
        return self._final(conclusion, artifacts)

    async def _prepare(self) -> Inputs:
        """Download what the child needs into a fresh directory."""
        tools, settings = self._tools, self._tools.settings
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        fetch = (tools.objects, self.dispatch, self._directory, settings.models, settings.threads)
        return await self._patiently(lambda: fetch_inputs(*fetch))

    async def _follow(self, child: Child) -> Exit:
        """Take in the child's events until it has ended and its checkpoints are stored."""
        uploads: list[asyncio.Task[None]] = []
        async for event in child.events():
            self._report.fold(event)
            if isinstance(event, Saved):
                self._saved = event
                uploads.append(asyncio.create_task(self._store_newest()))
        exited = await child.wait()
        await asyncio.gather(*uploads)
        return exited

    async def _store_newest(self) -> None:
        """Upload the newest checkpoint; when several wait, the older ones are skipped."""
        async with self._uploading:
            saved, self._saved = self._saved, None
            if saved is None or self._reason is StopReason.FENCED:
                return
            uri = await self._patiently(
                lambda: store_checkpoint(self._tools.objects, self.dispatch, Path(saved.directory), saved.step)
            )
            self._report.checkpoint = uri or self._report.checkpoint

    async def _publish(self, inputs: Inputs, curves: str | None) -> Artifacts | None:
        """Store the policy. None when another attempt owns the job by now."""
        finished = self._report.last
        assert isinstance(finished, Finished)  # noqa: S101 - only a finished attempt completes
        await self._look()
        if self._reason is StopReason.FENCED:
            return None
        self._report.peak_memory_gb = max(self._report.peak_memory_gb, finished.peak_memory_gb)
        now = self._tools.now()
        policy = await self._patiently(
            lambda: store_policy(self._tools.objects, self.dispatch, inputs.base, finished, now)
        )
        metrics.SAMPLES.observe(finished.samples)
        metrics.DURATION.observe((now - self._frame.begun_at).total_seconds())
        return artifacts_of(policy, curves, self._report.checkpoint)

    def _failure(self, error: Exception) -> TrainingStatus | None:
        """The final status after an error of our own; a stop that was asked for is no failure."""
        log.warning("attempt failed", job=self.dispatch.training_job_id, reason=repr(error))
        stopped = conclude(None, Exit(code=0), self._reason) if self._stopping.is_set() else None
        if stopped is not None or self._reason is StopReason.FENCED:
            return None if stopped is None else self._final(stopped, None)
        failure = TrainingError(code=error_code(error), message=str(error) or type(error).__name__)
        return self._final(Conclusion(FAILED, failure), None)

    def _final(self, conclusion: Conclusion, artifacts: Artifacts | None) -> TrainingStatus:
        last = self._report.last
        evaluation = last.evaluation if isinstance(last, Finished) and conclusion.status == COMPLETED else None
        more = {"error": conclusion.error, "evaluation_results": evaluation}
        status = self._frame.status(conclusion.status, self._report, self._tools.now(), artifacts, **more)
        metrics.JOBS.labels(status.status).inc()
        log.info("training ended", job=status.training_job_id, status=status.status, error=conclusion.error)
        return status

    async def _say(self, final: TrainingStatus) -> None:
        """Publish the final status, however long the broker is away."""
        while True:
            try:
                return await self._publish_status(final)
            except Unavailable as error:
                log.warning("cannot report yet", job=final.training_job_id, reason=str(error))
                await asyncio.sleep(self._tools.settings.retry_s)

    async def _publish_status(self, status: TrainingStatus) -> None:
        """Publish; a figure that breaks the contract must not silence the attempt, so then it goes without figures."""
        try:
            await self._tools.publish(status, cause=self._cause)
        except ContractError as error:
            log.error("status refused, sent without metrics", job=status.training_job_id, reason=str(error))
            bare = replace(status, metrics=None, progress=None, evaluation_results=None)
            await self._tools.publish(bare, cause=self._cause)

    async def _patiently(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in a thread, again while the object store is away; a stop ends the patience."""
        while True:
            try:
                return await asyncio.to_thread(work)
            except Unavailable as error:
                if self._stopping.is_set():
                    raise
                log.warning("object store is away", job=self.dispatch.training_job_id, reason=str(error))
                await asyncio.sleep(self._tools.settings.retry_s)

    async def _beat(self) -> None:
        """Say `running` at regular times, whatever the child does. A lost one is made up for by the next."""
        await self.launched.wait()
        while True:
            await asyncio.sleep(self._tools.settings.heartbeat_s)
            if self._child is not None:
                self._report.peak_memory_gb = max(self._report.peak_memory_gb, self._child.memory_gb())
            try:
                await self._publish_status(self.running_status())
            except RatchetError as error:
                log.warning("heartbeat not published", job=self.dispatch.training_job_id, reason=str(error))

    async def _watch(self) -> None:
        """Look at the job's state, and at the clock."""
        settings = self._tools.settings
        while True:
            await asyncio.sleep(settings.watch_s)
            with suppress(Unavailable):
                await self._look()
            if (self._tools.now() - self._frame.begun_at).total_seconds() > settings.max_runtime_s:
                self.request_stop(StopReason.TIMEOUT)

    async def _look(self) -> None:
        entry = await self._tools.jobs.get(self.dispatch.training_job_id)
        reason = must_stop(entry.value if entry else None, self.dispatch.attempt)
        if reason is not None:
            self.request_stop(reason)

    async def _end_child(self) -> None:
        """After a stop was requested: ask, wait, kill. A fenced child's work is worth nothing."""
        await self._stopping.wait()
        await self.launched.wait()
        if self._child is None:
            return
        if self._reason is not StopReason.FENCED:
            self._child.ask_to_stop()
            settings = self._tools.settings
            shutdown = self._reason is StopReason.SHUTDOWN
            await asyncio.sleep(settings.shutdown_grace_s if shutdown else settings.grace_s)
        log.warning("killing a training", job=self.dispatch.training_job_id, reason=str(self._reason))
        self._child.kill()
