"""What the gateway publishes: starts at once; turns, ends and feedback as soon as they are recorded.

Nothing here is in an answer's way: what costs time happens in other processes, and beyond a budget of bytes only that a
call happened is written down.
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
from ratchet.gateway.domain.arms import Arm
from ratchet.gateway.domain.capture import CANCELLED, LOST, TOO_LARGE
from ratchet.gateway.recorders import Finish, Workers
from ratchet.gateway.recording import CallJob, EventJob, Job, Recorded, short_turn
from ratchet.rules.redaction import Redactor

log = structlog.get_logger()

JOB_BYTES = 4096
"""What a job takes beside its bodies."""


@dataclass(slots=True)
class _Line:
    """A trajectory in a role: how many of its calls are being recorded, and the ends that wait until none is."""

    recording: int = 0
    ends: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class Recorder:
    """Publishes starts, turns, ends and feedback.

    A start goes out before the turns of its trajectory, an end after them, with their right number.
    """

    def __init__(self, outbox: Outbox, sealer: Sealer, workers: Workers, budget_bytes: int) -> None:
        self._outbox = outbox
        self._sealer = sealer
        self._workers = workers
        self._budget = budget_bytes
        self._redactor = Redactor()
        self._lines: dict[tuple[str, str], _Line] = {}
        self._held = 0
        """Bytes of what waits for its record."""

    def start(self, start: Start) -> None:
        """Announce an arm, before any engine is asked."""
        self._put(self._sealer.seal(start))

    def call(self, arm: Arm, job: CallJob) -> None:
        """Record a call that is over. One that its agent gave up is not searched: nobody learns from it."""
        arm.turns += 1
        if job.barred == CANCELLED:
            self._put_bare(arm, job, CANCELLED)
            return
        if not self._has_room(job.size):
            self._put_bare(arm, job, TOO_LARGE)
            return
        self._lines.setdefault((arm.trajectory_id, arm.role), _Line()).recording += 1
        self._submit(arm.trajectory_id, job, partial(self._called, arm, job))

    def feedback(self, feedback: Feedback) -> None:
        """Publish an opinion. Raises `Unavailable` when there is no room for it."""
        job = EventJob(feedback.TOPIC, encode(feedback))
        self._require_room(job.size)
        self._submit(feedback.trajectory_id, job, self._told)

    def end(self, ended: TrajectoryEnd, arm: Arm | None) -> None:
        """Publish an end once all turns before it are; `arm`: what is known of the trajectory in its role.

        Raises `Unavailable` when there is no room for it.
        """
        size = len(encode(ended))
        self._require_room(size)
        line = self._lines.get((ended.trajectory_id, ended.role))
        if line is None:
            self._end(ended, arm)
        else:
            self._held += size
            line.ends.append(partial(self._end, ended, arm, size))

    def _end(self, ended: TrajectoryEnd, arm: Arm | None, waited: int = 0) -> None:
        self._held -= waited
        counted = msgspec.structs.replace(ended, turns=arm.turns) if arm else ended
        self._submit(ended.trajectory_id, EventJob(ended.TOPIC, encode(counted)), self._told)

    def _submit(self, key: str, job: Job, finish: Finish) -> None:
        size = job.size + JOB_BYTES
        self._held += size
        metrics.HELD_BYTES.set(self._held)

        def finished(recorded: Recorded | None) -> None:
            self._held -= size
            metrics.HELD_BYTES.set(self._held)
            finish(recorded)

        self._workers.submit(key, job, finished)

    def _called(self, arm: Arm, job: CallJob, recorded: Recorded | None) -> None:
        if recorded is None or recorded.record is None:
            self._put_bare(arm, job, LOST)
        else:
            if recorded.problem is not None:
                metrics.INCOMPLETE.labels(recorded.problem).inc()
                log.warning("turn not whole", turn=job.asked.turn_id, reason=recorded.problem, detail=recorded.detail)
            arm.turns -= not self._put(recorded.record)
        key = (arm.trajectory_id, arm.role)
        line = self._lines[key]
        line.recording -= 1
        if line.recording == 0:
            del self._lines[key]
            for publish in line.ends:
                publish()

    def _told(self, recorded: Recorded | None) -> None:
        """An end or an opinion was recorded."""
        if recorded is not None and recorded.record is not None:
            self._put(recorded.record)
            return
        reason = (recorded.problem if recorded else None) or LOST
        metrics.UNPUBLISHED.labels(reason).inc()
        log.error("event not published", reason=reason, detail=recorded.detail if recorded else None)

    def _put_bare(self, arm: Arm, job: CallJob, reason: str) -> None:
        if reason != CANCELLED:
            metrics.INCOMPLETE.labels(reason).inc()
        arm.turns -= not self._put(self._sealer.seal(short_turn(self._redactor, job, reason)))

    def _put(self, record: Record) -> bool:
        accepted = self._outbox.put_sealed(record)
        metrics.PENDING.set(self._outbox.pending)
        metrics.OVERFLOWED.set(self._outbox.stats.overflowed)
        return accepted

    def _has_room(self, size: int) -> bool:
        return self._held + size + JOB_BYTES <= self._budget

    def _require_room(self, size: int) -> None:
        if not self._has_room(size):
            metrics.UNPUBLISHED.labels(TOO_LARGE).inc()
            raise Unavailable("more is being recorded than there is room for; try again", code="busy")
