"""Publishes what happened: starts at once; turns, ends and feedback once a process has made their record.

No answer waits for it: other processes do the costly work, and beyond a budget of bytes a turn records only that its
call happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog

from ratchet.bus.envelope import Record, Sealer
from ratchet.bus.outbox import Outbox
from ratchet.contract import Feedback, Start, TrajectoryEnd, encode
from ratchet.errors import Unavailable
from ratchet.gateway import metrics
from ratchet.gateway.domain.routing import Arm
from ratchet.gateway.domain.turns import CANCELLED, LOST, TOO_LARGE
from ratchet.gateway.recorder_pool import Finish, JobRunner
from ratchet.gateway.recorder_process import CallJob, EventJob, Job, Recorded, short_turn
from ratchet.rules.redaction import Redactor

log = structlog.get_logger()

JOB_BYTES = 4096
"""Cost of a job beside its bodies."""


@dataclass(slots=True)
class _InRecording:
    """A trajectory in a role: its calls without a record yet, and the ends that wait for them."""

    calls: int = 0
    ends: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class Recorder:
    """Publishes starts, turns, ends and feedback.

    A start goes out before the turns of its trajectory, an end after them, with their right number.
    """

    def __init__(self, outbox: Outbox, sealer: Sealer, jobs: JobRunner, budget_bytes: int) -> None:
        self._outbox = outbox
        self._sealer = sealer
        self._jobs = jobs
        self._budget = budget_bytes
        self._redactor = Redactor()
        self._in_recording: dict[tuple[str, str], _InRecording] = {}
        self._held = 0
        """Bytes of all jobs and ends that wait for their record."""

    def publish_start(self, start: Start) -> None:
        """Announce an arm, before the gateway asks any engine."""
        self._put_record(self._sealer.seal(start))

    def record_call(self, arm: Arm, job: CallJob) -> None:
        """Publish a call that is over as a turn. One that its agent gave up is published bare: no learner uses it."""
        arm.turns += 1
        if job.barred == CANCELLED:
            self._publish_bare(arm, job, CANCELLED)
        elif not self._has_room(job.size):
            self._publish_bare(arm, job, TOO_LARGE)
        else:
            self._in_recording.setdefault((arm.trajectory_id, arm.role), _InRecording()).calls += 1
            self._submit(arm.trajectory_id, job, partial(self._publish_turn, arm, job))

    def record_feedback(self, feedback: Feedback) -> None:
        """Publish feedback. Raises `Unavailable` when there is no room for it."""
        job = EventJob(feedback.TOPIC, encode(feedback))
        self._require_room(job.size)
        self._submit(feedback.trajectory_id, job, self._publish_event)

    def record_end(self, ended: TrajectoryEnd, arm: Arm | None) -> None:
        """Publish an end after all turns before it; `arm`: the trajectory in its role, if the gateway remembers it.

        Raises `Unavailable` when there is no room for it.
        """
        size = len(encode(ended))
        self._require_room(size)

        def submit(waited: int = 0) -> None:
            self._held -= waited
            counted = msgspec.structs.replace(ended, turns=arm.turns) if arm else ended
            self._submit(ended.trajectory_id, EventJob(ended.TOPIC, encode(counted)), self._publish_event)

        earlier = self._in_recording.get((ended.trajectory_id, ended.role))
        if earlier is None:
            submit()
        else:
            self._held += size
            earlier.ends.append(partial(submit, size))

    def _submit(self, key: str, job: Job, finish: Finish) -> None:
        size = job.size + JOB_BYTES
        self._held += size
        metrics.HELD_BYTES.set(self._held)

        def finish_job(recorded: Recorded | None) -> None:
            self._held -= size
            metrics.HELD_BYTES.set(self._held)
            finish(recorded)

        self._jobs.submit(key, job, finish_job)

    def _publish_turn(self, arm: Arm, job: CallJob, recorded: Recorded | None) -> None:
        """Publish the turn, bare if it got no record; the last of several calls lets the ends go that wait for them."""
        if recorded is None or recorded.record is None:
            self._publish_bare(arm, job, LOST)
        else:
            if recorded.problem is not None:
                metrics.INCOMPLETE.labels(recorded.problem).inc()
                log.warning("turn not whole", turn=job.header.turn_id, reason=recorded.problem, detail=recorded.detail)
            arm.turns -= not self._put_record(recorded.record)
        key = (arm.trajectory_id, arm.role)
        in_recording = self._in_recording[key]
        in_recording.calls -= 1
        if in_recording.calls == 0:
            del self._in_recording[key]
            for submit in in_recording.ends:
                submit()

    def _publish_bare(self, arm: Arm, job: CallJob, reason: str) -> None:
        if reason != CANCELLED:
            metrics.INCOMPLETE.labels(reason).inc()
        arm.turns -= not self._put_record(self._sealer.seal(short_turn(self._redactor, job, reason)))

    def _publish_event(self, recorded: Recorded | None) -> None:
        if recorded is not None and recorded.record is not None:
            self._put_record(recorded.record)
            return
        reason = (recorded.problem if recorded else None) or LOST
        metrics.UNPUBLISHED.labels(reason).inc()
        log.error("event not published", reason=reason, detail=recorded.detail if recorded else None)

    def _put_record(self, record: Record) -> bool:
        accepted = self._outbox.put_sealed(record)
        metrics.PENDING.set(self._outbox.pending)
        metrics.OVERFLOWED.set(self._outbox.stats.overflowed)
        return accepted

    def _has_room(self, size: int) -> bool:
        return self._held + size + JOB_BYTES <= self._budget

    def _require_room(self, size: int) -> None:
        if not self._has_room(size):
            metrics.UNPUBLISHED.labels(TOO_LARGE).inc()
            message = "the gateway has no room for this: it still records earlier calls; try again in a moment"
            raise Unavailable(message, code="busy")
