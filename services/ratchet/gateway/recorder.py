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

from ratchet.bus.outbox import Outbox
from ratchet.core.contract import Feedback, Start, TrajectoryEnd, encode
from ratchet.core.contract.gateway_notes import CallNote
from ratchet.core.contract.turn import Usage
from ratchet.core.errors import Unavailable
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.opt_outs import refs_of
from ratchet.dialects.streams import BETWEEN, LAST_EVENTS, datas
from ratchet.gateway import metrics
from ratchet.gateway.domain.prices import FREE, spent_tokens
from ratchet.gateway.domain.routing import Arm
from ratchet.gateway.domain.turns import CANCELLED, LOST, TOO_LARGE, TurnHeader, policy_label
from ratchet.gateway.recorder_pool import Finish, JobRunner
from ratchet.gateway.recorder_process import CallJob, Counted, EventJob, Job, Recorded, counted_of, short_turn
from ratchet.gateway.span_records import SpansJob
from ratchet.gateway.turn_order import TurnOrder
from ratchet.gateway.unrecorded import Unrecorded

log = structlog.get_logger()

Account = Callable[[str, int, float], None]
"""A key's id, tokens, and US dollars."""
JOB_BYTES = 4096
"""Cost of a job beside its bodies."""
SPANS_BYTES = 32 * 1024 * 1024
"""Most bytes of telemetry that wait to be read: about ten seconds of work, for which exporters wait at most."""


class StreamMemory:
    """Bytes of the streams under way, which the gateway keeps for their turns: of all together at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0
        """Bytes that are taken."""

    def take(self, size: int) -> bool:
        """Take room; False where there is none."""
        if self.held + size > self._limit:
            return False
        self.held += size
        return True

    def give_back(self, size: int) -> None:
        """Free room that was taken."""
        self.held -= size


@dataclass(slots=True)
class _InRecording:
    """A trajectory in a role: its calls without a record yet, and the ends that wait for them."""

    calls: int = 0
    ends: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class Recorder:
    """Publishes starts, turns, ends and feedback.

    A start goes out before the turns of its trajectory, an end after them, with their right number.
    """

    def __init__(
        self,
        outbox: Outbox,
        jobs: JobRunner,
        budget_bytes: int,
        streams: StreamMemory,
        unrecorded: Unrecorded,
        account: Account | None = None,
    ) -> None:
        """`account` takes what the calls of a key used."""
        self._outbox = outbox
        self._jobs = jobs
        self._budget = budget_bytes
        self._updates = unrecorded.updates
        self._account = account
        self._unrecorded = unrecorded
        self.streams = streams
        """Where streams under way are kept for their turns."""
        self.order = TurnOrder()
        """Which records wait for those of other processes."""
        self._in_recording: dict[tuple[str, str], _InRecording] = {}
        self._held = 0
        """Bytes of all calls, feedback and ends that wait for their record."""
        self._spans_held = 0
        metrics.PENDING.set_function(lambda: outbox.pending)
        metrics.OVERFLOWED.set_function(lambda: outbox.stats.overflowed)

    def publish_start(self, start: Start) -> None:
        """Announce an arm, before the gateway asks any engine."""
        self._outbox.put(start)

    def record_call(self, arm: Arm, job: CallJob) -> None:
        """Publish a call that is over as a turn, unless its trajectory is not recorded: bare where its agent gave it up
        before any answer came.

        PeerUpdates for other processes go out before this returns, and so before the agent has the end of its answer.
        """
        engine_worked = bool(job.answer) or job.barred == CANCELLED
        if self._account is not None and job.header.key_id is not None and engine_worked and job.choice == 0:
            self._account(job.header.key_id, *used_by(job))
        if self._unrecorded.heed(arm, [*refs_of(job.header)]):
            self._updates.send()
            return
        arm.own_turns += 1
        if job.barred == CANCELLED and not job.answer:
            self._publish_bare(arm, job, CANCELLED)
        elif not self._has_room(job.size):
            self._publish_bare(arm, job, TOO_LARGE)
        else:
            self._in_recording.setdefault((arm.trajectory_id, arm.role), _InRecording()).calls += 1
            self._submit(arm.trajectory_id, job, partial(self._publish_turn, arm, job), arm)
        self._updates.changed(arm)
        self._updates.send()

    def record_feedback(self, feedback: Feedback) -> None:
        """Publish feedback. Raises `Unavailable` when there is no room for it."""
        job = EventJob(feedback.TOPIC, encode(feedback))
        self._require_room(job.size)
        self._submit(feedback.trajectory_id, job, self._publish_event)

    def record_spans(self, job: SpansJob, finish: Finish) -> None:
        """Have a request of OTLP read; who asks publishes its records. Raises `Unavailable` when there is no room.

        It takes none of the room of calls, whose turns would lack their content.
        """
        size = job.size + JOB_BYTES
        if self._spans_held and self._spans_held + size > SPANS_BYTES:
            raise Unavailable(f"earlier requests, of {self._spans_held} bytes, are still being read", code="busy")
        self._spans_held += size

        def finish_job(recorded: Recorded | None) -> None:
            self._spans_held -= size
            finish(recorded)

        self._jobs.submit(job.signal, job, finish_job)

    def record_end(self, ended: TrajectoryEnd, arm: Arm | None, *, counted: bool = True) -> None:
        """Publish an end after all turns before it; `arm`: the trajectory in its role, if the gateway remembers it.

        `counted`: all its turns are known here, and the end says how many they are.

        Raises `Unavailable` when there is no room for it.
        """
        size = len(encode(ended))
        self._require_room(size)

        def submit(waited: int = 0) -> None:
            self._held -= waited
            if arm is not None and arm.unrecorded:
                return
            whole = msgspec.structs.replace(ended, turns=arm.turns) if arm and counted else ended
            self._submit(ended.trajectory_id, EventJob(ended.TOPIC, encode(whole)), self._publish_event)

        earlier = self._in_recording.get((ended.trajectory_id, ended.role))
        if earlier is None:
            submit()
        else:
            self._held += size
            earlier.ends.append(partial(submit, size))

    def _submit(self, key: str, job: Job, finish: Finish, arm: Arm | None = None) -> None:
        """`arm`: of a call, whose record depends on those of earlier ones."""
        size = job.size + JOB_BYTES
        self._held += size
        metrics.HELD_BYTES.set(self._held)

        def finish_job(recorded: Recorded | None) -> None:
            self._held -= size
            metrics.HELD_BYTES.set(self._held)
            finish(recorded)

        def submit_call(arm: Arm, job: CallJob) -> None:
            elsewhere = self._updates.calls.take(arm.trajectory_id, arm.role)
            self._jobs.submit(key, msgspec.structs.replace(job, elsewhere=elsewhere), finish_job)

        if arm is not None and isinstance(job, CallJob):
            self.order.do(arm, partial(submit_call, arm, job))
        else:
            self._jobs.submit(key, job, finish_job)

    def _publish_turn(self, arm: Arm, job: CallJob, recorded: Recorded | None) -> None:
        """Publish the turn, bare if it got no record; the last of several calls lets the ends go that wait for them."""
        if arm.unrecorded:  # since its record began to be made
            pass
        elif recorded is None or recorded.record is None:
            self._publish_bare(arm, job, LOST)
        else:
            if recorded.counted is not None:
                count_turn(job.header, recorded.counted)
            if recorded.problem is not None:
                metrics.INCOMPLETE.labels(recorded.problem).inc()
                log.warning("turn not whole", turn=job.header.turn_id, reason=recorded.problem, detail=recorded.detail)
            arm.own_turns -= not self._outbox.put_sealed(recorded.record)
            self._note_record(arm, recorded.call or _place_of(job.header))
        key = (arm.trajectory_id, arm.role)
        in_recording = self._in_recording[key]
        in_recording.calls -= 1
        if in_recording.calls == 0:
            del self._in_recording[key]
            for submit in in_recording.ends:
                submit()

    def _publish_bare(self, arm: Arm, job: CallJob, reason: Reason) -> None:
        if reason != CANCELLED:
            metrics.INCOMPLETE.labels(reason).inc()
        turn = short_turn(job, reason)
        count_turn(job.header, counted_of(turn))
        arm.own_turns -= not self._outbox.put(turn)
        self._note_record(arm, _place_of(job.header))

    def _note_record(self, arm: Arm, call: CallNote) -> None:
        arm.recorded += 1
        self._updates.recorded(msgspec.structs.replace(call, number=arm.recorded))

    def _publish_event(self, recorded: Recorded | None) -> None:
        if recorded is not None and recorded.record is not None:
            self._outbox.put_sealed(recorded.record)
            return
        reason = (recorded.problem if recorded else None) or LOST
        metrics.UNPUBLISHED.labels(reason).inc()
        log.error("event not published", reason=reason, detail=recorded.detail if recorded else None)

    def _has_room(self, size: int) -> bool:
        return self._held + size + JOB_BYTES <= self._budget

    def _require_room(self, size: int) -> None:
        if not self._has_room(size):
            metrics.UNPUBLISHED.labels(TOO_LARGE).inc()
            message = "the gateway has no room for this: it still records earlier calls; try again in a moment"
            raise Unavailable(message, code="busy")


def _place_of(header: TurnHeader) -> CallNote:
    """What other processes need of a call whose record holds no conversation."""
    return CallNote(
        trajectory_id=header.trajectory_id,
        role=header.role,
        turn_id=header.turn_id,
        number=1,
        index=header.turns,
        attempt=1,
        parent_turn_id=header.parent_hint,
    )


def used_by(job: CallJob) -> tuple[int, float]:
    """Tokens and US dollars of a call, with all its choices; without a price it costs nothing. Of one that its agent
    left without an answer, those of the prompt."""
    parts, events = [job.answer], 0
    if job.streamed:  # not split whole: agents wait
        first, last = job.answer.partition(BETWEEN)[0], job.answer.rsplit(BETWEEN, LAST_EVENTS)[-LAST_EVENTS:]
        parts, events = list(datas([first, *last])), job.answer.count(BETWEEN) + 1
    prompt, completion = spent_tokens(job.request, parts, events=events)
    price = job.price or FREE
    return prompt + completion, price.cost_of(Usage(prompt=prompt, completion=completion))


def count_turn(header: TurnHeader, counted: Counted) -> None:
    """Count a turn: whether a learner may use it, its tokens, and its cost."""
    trainable = "no" if counted.reason else "yes"
    metrics.series(metrics.CAPTURED, header.role, trainable, counted.reason or "").inc()
    policy, key, usage = policy_label(header), counted.key_id or "", counted.usage
    if usage is not None:
        for kind in metrics.TOKEN_KINDS:
            metrics.series(metrics.TOKENS, policy, key, kind).inc(getattr(usage, kind) or 0)
    if counted.cost_usd is not None:
        metrics.series(metrics.COST, policy, key).inc(counted.cost_usd)
