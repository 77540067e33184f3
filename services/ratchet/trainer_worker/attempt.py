"""One attempt of a job, from its dispatch to its final status: a child process that is watched, and a heartbeat."""

from __future__ import annotations

import asyncio
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog
from msgspec.structs import replace

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.received import Received
from ratchet.bus.tasks import end
from ratchet.core.contract import TrainingDispatch, TrainingStatus
from ratchet.core.contract.state import Job, JobState
from ratchet.core.contract.training import Artifacts, ErrorCode, TrainingError
from ratchet.core.errors import ContractError, ObjectsUnavailable, RatchetError, Rejected, Unavailable
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import request_problems
from ratchet.core.stores.objects import Objects
from ratchet.trainer_worker import metrics
from ratchet.trainer_worker.child_process import Child
from ratchet.trainer_worker.domain import (
    STOPPING,
    URGENT,
    Conclusion,
    Exit,
    Frame,
    Report,
    StopReason,
    Worker,
    conclude,
    grace_s,
    must_stop,
)
from ratchet.trainer_worker.errors import TimedOut, error_code, reason_of
from ratchet.trainer_worker.job import STORED, Failed, Finished, JobSpec, Saved
from ratchet.trainer_worker.s3_artifacts import (
    Base,
    artifacts_of,
    fetch_inputs,
    fetch_planning,
    fetch_search,
    hold_checkpoint,
    store_checkpoint,
    store_curves,
    store_policy,
)
from ratchet.trainer_worker.settings import Settings
from ratchet.trainer_worker.slots import Slot

log = structlog.get_logger()

T = TypeVar("T")

CHECKPOINT_S = 300.0
"""Longest time between two checkpoints of a training, however many train steps lie between them; longer where
checkpoints would take more than a tenth of its time. What a crash loses."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Of every attempt."""

    heartbeat_s: float = 2.0
    """Time between `running` statuses; the coordinator gives a job away after 30 s of silence."""
    watch_s: float = 1.0
    """Time between looks at the job's state: how soon a cancel or a newer attempt is noticed."""
    grace_s: float = 20.0
    """A training that was asked to stop and has not within this time is killed. It has longer where its train steps and
    checkpoints take long: twice the longest so far of both."""
    retry_s: float = 1.0
    """Pause after the broker or the object store did not answer."""
    patience_s: float = 3600.0
    """How long the object store may be away: the time in which people repair it, while the attempt holds its slot."""


TIMING = Timing()


class Attempt:
    """Runs once. `launched` is set when the child runs, or when it is clear that it never will."""

    def __init__(  # noqa: PLR0913 - by name
        self,
        received: Received[TrainingDispatch],
        *,
        bus: Bus,
        jobs: Bucket[Job],
        objects: Objects,
        settings: Settings,
        slot: Slot,
        timing: Timing,
    ) -> None:
        self.dispatch = dispatch = received.message
        self._cause = received
        self._bus = bus
        self._jobs = jobs
        self._objects = objects
        self._settings = settings
        self._slot = slot
        self._timing = timing
        self._worker = Worker(settings.worker, slot.instance)
        self.launched = asyncio.Event()
        self._report = Report()
        self._reason: StopReason | None = None
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        """The training ends without a further checkpoint."""
        self._child: Child | None = None
        self._directory = settings.work / f"{dispatch.training_job_id}-{dispatch.attempt}"
        self._held: tuple[Path, int] | None = None
        """The newest checkpoint that is not stored yet, and its train step."""
        self._stored_step = self._announced_step = 0
        """Of the newest checkpoint that is stored, and of the newest one that a status has named."""
        self._uploading = asyncio.Lock()
        self._frame = Frame(
            dispatch=dispatch,
            worker=self._worker,
            begun_at=bus.now(),
            platform=f"{platform.system().lower()}-{platform.machine()}",
            price_per_hour_usd=settings.price_per_hour_usd,
            gpus=slot.ranks if slot.gpu else 0,
        )

    @property
    def has_child(self) -> bool:
        """Whether the training process was started."""
        return self._child is not None

    def running_status(self) -> TrainingStatus:
        """Where the attempt is now."""
        stopping = STOPPING.get(self._reason)
        return self._frame.status(JobState.RUNNING, self._report, self._bus.now(), stopping=stopping)

    def request_stop(self, reason: StopReason) -> None:
        """Ask the training to stop; the first reason counts, unless a later one is more urgent."""
        if self._reason is not None and URGENT.get(reason, 0) <= URGENT.get(self._reason, 0):
            return
        self._reason = reason
        self._stopping.set()
        if reason in URGENT:
            self._at_once.set()
        log.info("stopping a training", job=self.dispatch.training_job_id, reason=str(reason))

    async def run(self) -> None:
        """Train, and publish how it ended, however long the broker is away. Whatever goes wrong becomes that status."""
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
                metrics.stop_showing(self.dispatch.request.role)
                if self._child is not None:
                    self._child.kill()
        while final is not None:
            try:
                await self._publish_status(final)
                break
            except Unavailable as error:
                log.warning("cannot report yet", job=final.training_job_id, reason=str(error))
                await asyncio.sleep(self._timing.retry_s)
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def _train(self) -> TrainingStatus | None:
        """Check, fetch, train, store. Returns the final status, or None when another attempt owns the job."""
        request, objects, directory = self.dispatch.request, self._objects, self._directory
        if problems := request_problems(request):
            raise Rejected("; ".join(problems))
        if request.deadline is not None and self._bus.now() > request.deadline:
            raise TimedOut(f"the deadline {request.deadline.isoformat()} passed before the training began")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        spec, base = await self._patiently(self._fetched)
        spec = replace(spec, checkpoint_s=CHECKPOINT_S)
        exited = Exit(code=0) if self._stopping.is_set() else await self._run_child(spec)
        conclusion = conclude(self._report.last, exited, self._reason)
        if conclusion is None:
            return None
        curves = await self._patiently(lambda: store_curves(objects, directory))
        finished = self._report.last
        if not isinstance(finished, Finished):  # what stopped or failed has stored its checkpoints already
            return self._final(conclusion, replace(curves, checkpoint=self._report.checkpoint))
        await self._read_job()
        if self._reason is StopReason.FENCED:
            return None
        self._report.peak_memory_gb = max(self._report.peak_memory_gb, finished.peak_memory_gb)
        now = self._bus.now()
        usage = self._frame.usage(self._report, now)
        policy = await self._patiently(lambda: store_policy(objects, self.dispatch, base, finished, now, usage))
        metrics.SAMPLES.observe(finished.samples)
        metrics.DURATION.observe((now - self._frame.begun_at).total_seconds())
        return self._final(conclusion, artifacts_of(policy, curves, self._report.checkpoint))

    def _fetched(self) -> tuple[JobSpec, Base]:
        objects, dispatch, settings = self._objects, self.dispatch, self._settings
        algorithm = ALGORITHMS[dispatch.request.training_config.algorithm]
        if algorithm.writes_bundle:
            return fetch_search(objects, dispatch, self._directory, settings.gateway_url)
        if algorithm.makes_planner:
            return fetch_planning(objects, dispatch, self._directory, settings.threads)
        return fetch_inputs(objects, dispatch, self._directory, settings.models, settings.threads)

    async def _run_child(self, spec: JobSpec) -> Exit:
        """Start the child, and fold its events until it has ended and its checkpoints are stored."""
        self._child = child = await self._slot.start(spec, self._directory)
        self.launched.set()
        uploads: list[asyncio.Task[None]] = []
        async for event in child.events():
            self._report.fold(event)
            if isinstance(event, Saved):
                self._hold(event)
                uploads.append(asyncio.create_task(self._store_newest()))
        exited = await child.wait()
        await asyncio.gather(*uploads)
        return exited

    def _hold(self, saved: Saved) -> None:
        """Keep a checkpoint until it is stored; an older one that still waits for that is skipped."""
        held = hold_checkpoint(Path(saved.directory), self._directory)
        if held is None:
            return
        if self._held is not None:
            shutil.rmtree(self._held[0])
        self._held = held, saved.step

    async def _store_newest(self) -> None:
        """Upload the newest checkpoint that waits for it."""
        async with self._uploading:
            if self._held is None or self._reason is StopReason.FENCED:
                return
            (directory, step), self._held = self._held, None
            self._report.checkpoint = await self._patiently(
                lambda: store_checkpoint(self._objects, self.dispatch, directory, step)
            )
            self._stored_step = step
            await asyncio.to_thread(shutil.rmtree, directory)

    def _failure(self, error: Exception) -> TrainingStatus | None:
        """The final status after an error of our own; a stop that was asked for is no failure."""
        log.warning("attempt failed", job=self.dispatch.training_job_id, reason=repr(error))
        if self._reason is not None:
            stopped = conclude(None, Exit(code=0), self._reason)
            return None if stopped is None else self._final(stopped, None)
        code = error_code(error)
        algorithm = ALGORITHMS.get(self.dispatch.request.training_config.algorithm)
        is_search = algorithm is not None and algorithm.writes_bundle
        final = is_search and code == ErrorCode.DATA  # other data would forget what was used of the budget
        failure = TrainingError(code=code, message=reason_of(error), final=final)
        return self._final(Conclusion(JobState.FAILED, failure), None)

    def _final(self, conclusion: Conclusion, artifacts: Artifacts | None) -> TrainingStatus:
        last = self._report.last
        evaluation = last.evaluation if isinstance(last, Finished) and conclusion.status == JobState.COMPLETED else None
        stop = last.health_stop if isinstance(last, (Finished, Failed)) else None
        stopping = STOPPING.get(self._reason) if conclusion.status == JobState.CANCELLED else None
        status = self._frame.status(
            conclusion.status,
            self._report,
            self._bus.now(),
            artifacts,
            error=conclusion.error,
            evaluation_results=evaluation,
            health_stop=stop,
            stopping=stopping,
        )
        metrics.count_ended(status)
        log.info("training ended", job=status.training_job_id, status=status.status, error=conclusion.error)
        return status

    async def _publish_status(self, status: TrainingStatus) -> None:
        """Publish; a figure that breaks the contract must not silence the attempt, so then it goes without figures."""
        try:
            await self._bus.publish(status, cause=self._cause)
        except ContractError as error:
            log.error("status refused, sent without metrics", job=status.training_job_id, reason=str(error))
            bare = replace(status, metrics=None, progress=None, evaluation_results=None)
            await self._bus.publish(bare, cause=self._cause)

    async def _patiently(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in a thread, again while the object store is away; a stop, and time, end the patience."""
        until = time.monotonic() + self._timing.patience_s
        while True:
            try:
                return await asyncio.to_thread(work)
            except Unavailable as error:
                if self._stopping.is_set():
                    raise
                if time.monotonic() >= until:
                    waited = f"the object store was away for {self._timing.patience_s:g} s"
                    raise ObjectsUnavailable(f"{waited}: {error}") from error
                log.warning("object store is away", job=self.dispatch.training_job_id, reason=str(error))
                await asyncio.sleep(self._timing.retry_s)

    async def _beat(self) -> None:
        """Report `running` at regular times from the moment the job is taken, also while its model is being fetched.

        The next heartbeat makes up for a lost one. Once another attempt owns the job there is none.
        """
        while self._reason is not StopReason.FENCED:
            await asyncio.sleep(self._timing.heartbeat_s)
            if self._child is not None:
                self._report.peak_memory_gb = max(self._report.peak_memory_gb, self._child.memory_gb())
            step = self._stored_step
            try:
                running = self.running_status()
                metrics.show(running)
                await self._publish_status(running)
                # Let the training process know that a status has named the checkpoint: nothing can lose it any more.
                if step > self._announced_step:
                    (self._directory / STORED).write_text(str(step))
                    self._announced_step = step
            except (RatchetError, OSError) as error:
                log.warning("heartbeat not published", job=self.dispatch.training_job_id, reason=str(error))

    async def _watch(self) -> None:
        """Watch the job's state, and the clock."""
        while True:
            await asyncio.sleep(self._timing.watch_s)
            with suppress(Unavailable):
                await self._read_job()
            if (self._bus.now() - self._frame.begun_at).total_seconds() > self._settings.max_runtime_s:
                self.request_stop(StopReason.TIMEOUT)

    async def _read_job(self) -> None:
        """Read the job's state, and stop where it says so."""
        entry = await self._jobs.get(self.dispatch.training_job_id)
        reason = must_stop(entry.value if entry else None, self.dispatch.attempt, self._worker)
        if reason is not None:
            self.request_stop(reason)

    async def _end_child(self) -> None:
        """After a stop was requested: ask, wait, kill. A fenced child's work is worth nothing, and a cancel may ask for
        an end at once."""
        await self._stopping.wait()
        await self.launched.wait()
        if self._child is None:
            return
        if not self._at_once.is_set():
            self._child.ask_to_stop()
            patience_s = grace_s(self._report, self._timing.grace_s)
            shutdown = self._reason is StopReason.SHUTDOWN
            with suppress(TimeoutError):
                async with asyncio.timeout(min(patience_s, self._settings.drain_s) if shutdown else patience_s):
                    await self._at_once.wait()
        log.warning("killing a training", job=self.dispatch.training_job_id, reason=str(self._reason))
        self._child.kill()
