"""Which trajectories of a rollout count, and what became of each: a fold of calls and rewards.

A trajectory is admitted by its first call: on the stable or the canary arm, under a weight of this rollout, served by
the policies that are compared. It finishes with its reward (revision 0), or as a failure when none came within the
horizon, or as a failure at once when another had to answer because a call on its arm failed: what an arm broke is its
own, whoever mended it (intention to treat; leaving it out would judge an arm by its survivors). It is dropped when its
arm changed in flight for another reason: a lapsed lease, a rollback. Each counts once, in the order in which they
finish. Time is the time at which the stream stored a message, so folding the same messages again gives the same
statistics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from ratchet.canary_deployer.domain.e_processes import MIN_WEIGHT
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.statistics import Finished, Statistics, observe
from ratchet.messages import Reward, Turn
from ratchet.messages.routing import CANARY, MIXED, STABLE

KEEP_EARLY = 200
"""Rewards kept whose first call was not read yet: the two streams are read side by side."""

MAX_PENDING = 5000
"""Trajectories watched at the same time, so that the record stays small; more are left out, whatever their arm."""

OTHER = "other"
"""Mark of a trajectory that is none of this rollout's business."""


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """An admitted trajectory without outcome. Written as an array: there may be thousands."""

    canary: bool
    weight: float
    since: float
    """When its first call was stored, seconds since the epoch."""
    calls: int = 0
    latency_ms: float = 0.0
    """Sum over its successful calls."""
    failed_until: float | None = None
    """When the last of its failed calls ended, by the gateway's clock as in `good_since`."""
    good_since: float | None = None
    """When the last of its other calls began."""

    @property
    def broken(self) -> bool:
        """Whether no call on its arm was begun after one had failed.

        A fallback changes the arm for good, so a call that began on the arm after a failure shows that this failure
        did not change it. One that was under way beside it shows nothing.
        """
        if self.failed_until is None:
            return False
        return self.good_since is None or self.good_since < self.failed_until

    def after(self, call: Call) -> Pending:
        """After one more call on its arm. The two instants are the same whatever comes twice."""
        if call.error:
            until = call.ended if self.failed_until is None else max(call.ended, self.failed_until)
            return msgspec.structs.replace(self, failed_until=until)
        since = call.began if self.good_since is None else max(call.began, self.good_since)
        if call.latency_ms is None:
            return msgspec.structs.replace(self, good_since=since)
        latency_ms = self.latency_ms + call.latency_ms
        return msgspec.structs.replace(self, calls=self.calls + 1, latency_ms=latency_ms, good_since=since)


class Early(msgspec.Struct, frozen=True, array_like=True):
    """An outcome that came before its trajectory's first call was read."""

    at: float
    failed: bool
    reward: float
    negative: bool | None = None
    violation: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as the fold sees it."""

    trajectory_id: str
    at: float
    first: bool
    arm: str
    version: int
    weight: float
    error: bool
    latency_ms: float | None
    began: float = 0.0
    """When the gateway was asked, seconds since the epoch by its clock."""
    ended: float = 0.0
    """When it had an answer, or had failed."""


@dataclass(frozen=True, slots=True)
class Score:
    """One revision of a reward as the fold sees it."""

    trajectory_id: str
    at: float
    revision: int
    failed: bool
    reward: float
    negative: bool | None
    """What people said: bad, good, or nothing."""
    violation: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The two policies of a rollout."""

    stable_version: int
    canary_version: int


@dataclass(frozen=True, slots=True)
class Watch:
    """The state of the fold."""

    statistics: Statistics = field(default_factory=Statistics)
    pending: Mapping[str, Pending] = field(default_factory=dict[str, Pending])
    early: Mapping[str, Early] = field(default_factory=dict[str, Early])
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """Finished and left-out trajectories with the arm whose answers they are about, oldest first, bounded."""
    rated: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Trajectories whose feedback is counted, and whether it was negative; bounded like `seen`."""


def call_of(turn: Turn, stored_at: float) -> Call:
    """A turn as the fold sees it."""
    began = turn.timestamp.timestamp()
    return Call(
        trajectory_id=turn.trajectory_id,
        at=stored_at,
        first=turn.index == 0,
        arm=turn.policy.arm,
        version=turn.policy.version,
        weight=turn.policy.weight,
        error=turn.error is not None,
        latency_ms=turn.latency_ms if turn.error is None else None,
        began=began,
        ended=began + (turn.latency_ms or 0.0) / 1000,
    )


def score_of(reward: Reward, stored_at: float) -> Score:
    """A reward as the fold sees it: failed means that task completion is 0 or unknown."""
    applicable = {name: part for name, part in reward.reward_components.items() if part.applicable}
    completion, feedback, safety = (applicable.get(name) for name in ("task_completion", "user_feedback", "safety"))
    return Score(
        trajectory_id=reward.trajectory_id,
        at=stored_at,
        revision=reward.revision,
        failed=completion is None or completion.score <= 0,
        reward=min(max(reward.total_reward, 0.0), 1.0),
        negative=None if feedback is None else feedback.score < 0.5,
        violation=safety is not None and safety.score <= 0,
    )


def fold(watch: Watch, messages: Iterable[Call | Score], compared: Compared, rules: Rules) -> Watch:
    """The watch after `messages`, in their order."""
    folding = _Folding(watch, compared, rules)
    for message in messages:
        if isinstance(message, Call):
            folding.call(message)
        else:
            folding.expire(message.at)
            folding.score(message)
    return folding.watch()


def expire(watch: Watch, until: float, compared: Compared, rules: Rules) -> Watch:
    """The watch when everything stored up to `until` has been folded: what is overdue has failed."""
    folding = _Folding(watch, compared, rules)
    folding.expire(until)
    return folding.watch()


def overdue(watch: Watch, until: float, rules: Rules) -> bool:
    """Whether some trajectory has no outcome although its horizon has passed at `until`."""
    return any(pending.since + rules.horizon_s < until for pending in watch.pending.values())


def short_id(trajectory_id: str) -> str:
    """64 bits of a trajectory's id: enough to tell a few thousand apart, and small to store."""
    return hashlib.blake2b(trajectory_id.encode(), digest_size=8).hexdigest()


class _Folding:
    """A watch while a batch is folded into it: dictionaries are copied once per batch, not per message."""

    def __init__(self, watch: Watch, compared: Compared, rules: Rules) -> None:
        self._compared = compared
        self._rules = rules
        self._statistics = watch.statistics
        self._pending = dict(watch.pending)
        self._early = dict(watch.early)
        self._seen = dict(watch.seen)
        self._rated = dict(watch.rated)

    def watch(self) -> Watch:
        return Watch(self._statistics, self._pending, self._early, self._seen, self._rated)

    def call(self, call: Call) -> None:
        key = short_id(call.trajectory_id)
        if key in self._seen:
            return
        pending = self._pending.get(key)
        if pending is None:
            pending = self._admitted(call)
            if pending is None:
                self._leave(key, OTHER)
                return
        if call.arm == MIXED or call.version != self._version(pending):
            self._mix(key, pending)
            return
        self._count_call(pending.canary, call.error)
        pending = pending.after(call)
        self._pending[key] = pending
        if not pending.broken:  # else the next call says whether another had to answer
            self._settle_early(key)

    def score(self, score: Score) -> None:
        key = short_id(score.trajectory_id)
        if score.revision == 0 and key in self._pending:
            self._finish(key, score.failed, score.reward)
        elif score.revision == 0 and key not in self._seen:
            self._early[key] = Early(score.at, score.failed, score.reward, score.negative, score.violation)
            while len(self._early) > KEEP_EARLY:
                del self._early[next(iter(self._early))]
        self._count_opinion(key, score.negative, score.violation and score.revision == 0)

    def expire(self, until: float) -> None:
        """Everything overdue at `until` has failed, in the order of its horizons."""
        horizon = self._rules.horizon_s
        late = [(p.since, key) for key, p in self._pending.items() if p.since + horizon < until]
        for _, key in sorted(late):
            if not self._settle_early(key):
                self._finish(key, failed=True, reward=0.0, timed_out=True)
        strangers = [(key, early) for key, early in self._early.items() if key not in self._pending]
        for key in [key for key, early in strangers if early.at + horizon < until]:
            del self._early[key]

    def _admitted(self, call: Call) -> Pending | None:
        versions = {STABLE: self._compared.stable_version, CANARY: self._compared.canary_version}
        comparable = MIN_WEIGHT <= call.weight <= 1 - MIN_WEIGHT and len(self._pending) < MAX_PENDING
        if not call.first or not comparable or versions.get(call.arm) != call.version:
            return None
        return Pending(call.arm == CANARY, call.weight, call.at)

    def _version(self, pending: Pending) -> int:
        return self._compared.canary_version if pending.canary else self._compared.stable_version

    def _mix(self, key: str, pending: Pending) -> None:
        """Another answers from here on: a failure of the arm that broke, else nobody's doing."""
        self._early.pop(key, None)
        if pending.broken:
            self._finish(key, failed=True, reward=0.0)
            self._seen[key] = OTHER  # what people say of it is about the answers of another
            return
        del self._pending[key]
        self._leave(key, OTHER)
        self._statistics = replace(self._statistics, mixed=self._statistics.mixed + 1)

    def _settle_early(self, key: str) -> bool:
        """Finish a trajectory whose outcome was read before its calls; False when none was."""
        early = self._early.pop(key, None)
        if early is None:
            return False
        self._finish(key, early.failed, early.reward)
        self._count_opinion(key, early.negative, early.violation)
        return True

    def _finish(self, key: str, failed: bool, reward: float, timed_out: bool = False) -> None:
        pending = self._pending.pop(key)
        latency_ms = pending.latency_ms / pending.calls if pending.calls else None
        finished = Finished(pending.canary, pending.weight, failed, reward, latency_ms, timed_out)
        self._statistics = observe(self._statistics, finished, self._rules)
        self._leave(key, CANARY if pending.canary else STABLE)

    def _leave(self, key: str, arm: str) -> None:
        self._seen[key] = arm
        while len(self._seen) > self._rules.keep_seen:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._rated.pop(oldest, None)

    def _count_call(self, canary: bool, error: bool) -> None:
        counts = self._statistics.arm(canary)
        counts = replace(counts, calls=counts.calls + 1, errors=counts.errors + error)
        self._statistics = self._statistics.with_arm(canary, counts)

    def _count_opinion(self, key: str, negative: bool | None, violation: bool) -> None:
        """Feedback and safety of a finished trajectory; a later revision replaces what an earlier one said."""
        arm = self._seen.get(key)
        if arm not in (STABLE, CANARY):
            return
        counts = self._statistics.arm(arm == CANARY)
        counts = replace(counts, violations=counts.violations + violation)
        if negative is not None:
            before = self._rated.get(key)
            counts = replace(
                counts,
                rated=counts.rated + (before is None),
                negative=counts.negative + negative - bool(before),
            )
            self._rated[key] = negative
        self._statistics = self._statistics.with_arm(arm == CANARY, counts)
