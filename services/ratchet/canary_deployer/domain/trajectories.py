"""What is known of each started trajectory: a fold of starts, calls, scores and opinions.

A trajectory is admitted by its start, at the end of the order, when it names this rollout, its policies and a weight
that leaves something to compare. Nothing is ever inserted earlier; a trajectory without a start is in no statistic, and
one whose start comes twice counts at its first. From then on

- its **first call** settles with the first turn of index 0 that an engine has computed anything of: a harm when it
  failed or was cancelled, or when none came within the horizon;
- its **outcome** settles once: with the first reward that knows an outcome reported within the horizon; as a failure at
  once when another policy answered because a call on its arm failed, and no engine was at fault (intention to treat: a
  failure belongs to the arm on which it happened, whichever policy repairs it); as *missing* once everything that was
  reported within the horizon is scored. Later revisions are shown, never folded;
- a **fault of the engine** is no policy's (`Call.fault`): a trajectory that was moved by it stays with the values that
  are worst for the claim, as any other that was moved. Where an engine broke over a call, the policy may have made it:
  first calls, the failures of a rollback and the failure-streak trip wire count that, on both arms alike, so that an
  engine that restarts shows nothing;
- while collector or reward computer is behind it stays pending, up to `Rules.patience_s` after its start: then it is
  *unscored*, with the values that are worst for the claim. An outage hits both arms, but the slower one loses
  more outcomes to it: counted as missing these would be evidence against it. A bound is evidence for nothing;
- a trajectory that was **moved** without a failure of its arm (a lapsed lease) stays, with the values that are worst
  for the claim (`cohorts.py`);
- its **cost** is that of its calls within the horizon, retries and those of a fallback included, until its outcome is
  known; after a failure that another policy repaired, until a score with an outcome comes, or the horizon ends. A
  failed call without a price costs nothing; any other one without a price leaves the cost unknown;
- its **complaint** settles with the first opinion of its user that is bad and was stored within the horizon, and there
  is none when everything that was said until then is known: it counts on the arm that was drawn, whichever policy
  answered in the end, and whether or not its outcome is known. Opinions come from their own stream, so no service that
  is behind holds them up;
- its **subject** decides which unit it counts in, if any (`subjects.py`); a block is not folded for good while a unit
  that was opened in it may change.

Time is the time at which the stream stored a message; `Batch` says until when outcomes are known.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from ratchet.canary_deployer.domain.e_processes import BLOCK, MIN_WEIGHT
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.subjects import UNCOUNTED, SubjectFilter, Unit
from ratchet.core.contract import Feedback, Reward, Start
from ratchet.core.contract.turn import BROKE, NO_MODEL, NOT_COMPUTED, TurnSummary
from ratchet.core.rules.arms import CANARY, STABLE

PENDING, SUCCESS, FAILED, MISSING, MOVED, UNSCORED = range(6)
"""Outcomes. `MOVED`: another policy answered from some call on, through no fault of the arm. `UNSCORED`: it was
reported, if ever, to a collector or a reward computer that was behind for too long."""

SHORTEST_MS = 1e-3
"""A latency is at least this: no clock measures a shorter one."""
GOOD = 0.5
"""An opinion below it is a complaint."""
DEAREST_USD = 1e9
"""A call costs at most this, for the same reason."""
LONGEST_MS = 1e9
"""A latency is at most this, eleven days: sums of it stay numbers that a record can hold."""
MOST_OPEN = 200_000
"""Trajectories of which something may be pending at once: 270 MB, and .1 s of a processor for each evaluation. A start
beyond them is in no statistic: that depends on earlier starts alone, not on its arm or on how it will go."""


@dataclass(frozen=True, slots=True)
class Started:
    """A start as the fold sees it."""

    trajectory_id: str
    at: float
    """When it was stored, seconds since the epoch by the stream's clock, as in `Call` and `Score`."""
    arm: str
    version: int
    weight: float
    rollout_id: str | None
    terms: Terms
    subject: str | None = None
    """16 hexadecimal digits; None: it is its own subject."""


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """The centres of the tests, as the route had them when the arm was drawn."""

    reward: float = 0.5
    loss: float = 0.5
    failure: float = 0.5
    latency: float = 0.5
    scale_ms: float | None = None
    """None: no latency was known yet, so the tests leave this trajectory's out."""
    cost: float = 0.05
    """As a share of the cap, four times what .99 of trajectories cost: about what a mean one does."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as the fold sees it."""

    trajectory_id: str
    at: float
    first: bool
    arm: str
    version: int
    error: bool
    latency_ms: float | None
    """None for a call without an answer."""
    hung: bool = False
    """Its caller went away before the answer."""
    began: float = 0.0
    """When the gateway was asked, seconds since the epoch by its clock."""
    ended: float = 0.0
    """When it had an answer, or had failed."""
    fault: str | None = None
    """What the engine did wrong, where it failed by it, as turns name it."""
    cost_usd: float | None = None
    """None: unknown."""
    unapplied: bool = False
    """Its agent asked for the policy's bundle, and does not say that it applied it."""


@dataclass(frozen=True, slots=True)
class Score:
    """One revision of a reward as the fold sees it."""

    trajectory_id: str
    at: float
    """When the report was stored that it is computed from, where the reward has that; else when the reward was."""
    success: bool | None
    """None: this revision knows no outcome."""
    reward: float
    violation: bool


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a user said of a trajectory, as the fold sees it."""

    trajectory_id: str
    at: float
    bad: bool


Event = Started | Call | Score | Opinion


class Trajectory(msgspec.Struct, array_like=True):
    """A started trajectory. Written as an array: there may be 36,000 of them."""

    key: str
    canary: bool
    weight: float
    since: float
    """When its start was stored."""
    terms: int
    """Place in its chunk's `terms`."""
    outcome: int = PENDING
    first: int | None = None
    """1: the first call was a harm, 0: it was not, None: pending."""
    reward: float | None = None
    calls: int = 0
    """Answered calls until the outcome was known."""
    latency_ms: float = 0.0
    """Their sum."""
    hung: bool = False
    violation: bool = False
    """Known when the outcome settled: for the safety test."""
    violated: bool = False
    """The same, later revisions included: for operators."""
    rated: bool = False
    """Its user has given an opinion within the horizon."""
    failed_until: float | None = None
    """When the last of its failed calls ended, by the gateway's clock as in `good_since`."""
    good_since: float | None = None
    """When the last of its other calls began."""
    faulted: bool = False
    """An engine failed one of its calls."""
    broken_off: bool = False
    """An engine broke over one of its calls, before the outcome was known."""
    subject: str = ""
    """Empty: it is its own."""
    place: int = 0
    """In its subject's unit; 0 opened it, `UNCOUNTED` counts in none."""
    cost_usd: float | None = None
    """Of its calls so far whose cost is known; None: there was none."""
    unpriced: bool = False
    """The cost of one of its calls is unknown."""
    spending: bool = False
    """Its outcome has settled and its cost has not: a fallback goes on for it."""
    complained: bool = False
    """Its user has given a bad opinion within the horizon."""

    @property
    def done(self) -> bool:
        """Whether no value that a test uses will change any more, but for the one over complaints."""
        if self.outcome in (MOVED, UNSCORED):
            return True
        return self.outcome != PENDING and self.first is not None and not self.spending

    @property
    def priced(self) -> bool:
        """Whether the cost of all its calls is known so far, and there was one."""
        return self.cost_usd is not None and not self.unpriced

    def pay(self, call: Call) -> None:
        """Take in what a call cost."""
        if call.cost_usd is None:
            self.unpriced = True
        else:
            self.cost_usd = (self.cost_usd or 0.0) + min(call.cost_usd, DEAREST_USD)

    @property
    def broken(self) -> bool:
        """Whether no call on its arm was begun after one had failed.

        A fallback changes the arm for good, so a call that began on the arm after a failure shows that this failure
        did not change it. One that was under way beside it shows nothing.
        """
        if self.failed_until is None:
            return False
        return self.good_since is None or self.good_since < self.failed_until

    def count(self, call: Call) -> None:
        """Take in a call: its latency, and the two instants that reveal a fallback. Those do not change when it comes
        twice."""
        if call.fault is not None:
            self.broken_off |= call.fault == BROKE
            return
        if call.error:
            self.failed_until = call.ended if self.failed_until is None else max(call.ended, self.failed_until)
            return
        self.good_since = call.began if self.good_since is None else max(call.began, self.good_since)
        self.hung |= call.hung
        if call.latency_ms is not None:
            self.calls += 1
            self.latency_ms += min(call.latency_ms, LONGEST_MS)


class ArmCounts(msgspec.Struct):
    """Totals of one arm, for operators. Tests use the cohorts."""

    started: int = 0
    unannounced: int = 0
    """First calls of trajectories of this rollout's canary that are in no statistic; 0 for stable."""
    trajectories: int = 0
    """Those whose outcome has settled."""
    failures: int = 0
    missing: int = 0
    moved: int = 0
    unscored: int = 0
    rewarded: int = 0
    reward_total: float = 0.0
    timed: int = 0
    log_latency: float = 0.0
    """Sum of the logarithms of mean latencies, of those trajectories that had one: for the typical latency."""
    calls: int = 0
    errors: int = 0
    hung: int = 0
    faulted: int = 0
    """Trajectories of which an engine failed a call,"""
    no_model: int = 0
    """and those of them whose server does not have the model that the bundle names."""
    first_calls: int = 0
    """Trajectories whose first call is known,"""
    unapplied: int = 0
    """and those of them whose agent asked for the policy's bundle, and does not say that it applied it."""
    rated: int = 0
    """Trajectories of which their users have given an opinion within the horizon,"""
    complaints: int = 0
    """and those of which they have given a bad one."""
    violations: int = 0
    priced: int = 0
    """Trajectories whose cost has settled and is known."""
    cost_usd: float = 0.0
    """Their sum."""
    unpriced: int = 0
    """Those whose cost has settled and is unknown."""

    @property
    def reward_mean(self) -> float | None:
        return self.reward_total / self.rewarded if self.rewarded else None

    @property
    def cost_mean(self) -> float | None:
        return self.cost_usd / self.priced if self.priced else None

    @property
    def applied(self) -> float | None:
        """Share of trajectories that met the policy as it is; None before any first call."""
        return 1 - self.unapplied / self.first_calls if self.first_calls else None

    @property
    def error_rate(self) -> float | None:
        return self.errors / self.calls if self.calls else None


class Chunk(msgspec.Struct):
    """BLOCK consecutive trajectories in the order of their starts; the last chunk may hold fewer."""

    number: int
    terms: list[Terms]
    trajectories: list[Trajectory]
    forgotten: SubjectFilter = SubjectFilter()
    """The subjects of all chunks before it that are not remembered any more."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The rollout and its two policies."""

    rollout_id: str
    stable_version: int
    canary_version: int
    weights: frozenset[float]
    """Every weight that the canary has had: no gateway that knows the route announces a start with another one."""
    split: frozenset[str] = frozenset()
    """Subjects whose trajectories are their own subjects."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Some messages; starts come before calls and calls before scores."""

    events: Sequence[Event]
    as_of: float
    """The first reward of every report that was stored before this instant, by the stream's clock, is in this batch or
    an earlier one."""
    read_until: float | None = None
    """Every reward and every opinion that was stored before this instant is, too; None: `as_of`. Collector and reward
    computer are behind by the difference."""


def started_of(start: Start, stored_at: float) -> Started:
    """A start as the fold sees it."""
    known = start.centres or {}
    centres = {name: known[name] for name in ("reward", "loss", "failure", "latency", "cost") if name in known}
    return Started(
        trajectory_id=start.trajectory_id,
        at=stored_at,
        arm=start.policy.arm,
        version=start.policy.version,
        weight=start.policy.weight,
        rollout_id=start.rollout_id,
        terms=Terms(**centres, scale_ms=start.latency_scale_ms),
        subject=start.subject_ref,
    )


def call_of(turn: TurnSummary, stored_at: float) -> Call:
    """A turn as the fold sees it."""
    began = turn.timestamp.timestamp()
    return Call(
        trajectory_id=turn.trajectory_id,
        at=stored_at,
        first=turn.index == 0,
        arm=turn.arm,
        version=turn.version,
        error=turn.failed,
        latency_ms=None if turn.cancelled or turn.failed else turn.latency_ms,
        hung=turn.cancelled,
        began=began,
        ended=began + (turn.latency_ms or 0.0) / 1000,
        fault=turn.fault,
        cost_usd=0.0 if turn.cost_usd is None and turn.failed else turn.cost_usd,
        unapplied=turn.unapplied,
    )


def score_of(reward: Reward, stored_at: float) -> Score:
    """A reward as the fold sees it: the outcome is known when task completion is."""
    applicable = {name: part for name, part in reward.reward_components.items() if part.applicable}
    completion, safety = applicable.get("task_completion"), applicable.get("safety")
    return Score(
        trajectory_id=reward.trajectory_id,
        at=min(stored_at, reward.reported_at.timestamp()) if reward.reported_at else stored_at,
        success=None if completion is None else completion.score > 0,
        reward=min(max(reward.total_reward, 0.0), 1.0),
        violation=safety is not None and safety.score <= 0,
    )


def opinion_of(feedback: Feedback, stored_at: float) -> Opinion | None:
    """A user's opinion as the fold sees it; None for what is none.

    A rater's is left out: who chooses what to rate may choose by the arm.
    """
    if feedback.score is None or feedback.rater is not None:
        return None
    return Opinion(feedback.trajectory_id, stored_at, bad=feedback.score < GOOD)


def key_of(trajectory_id: str) -> str:
    """Stands for a trajectory in the record: 64 bits of a hash."""
    return hashlib.blake2b(trajectory_id.encode(), digest_size=8).hexdigest()


@dataclass
class Window:
    """The trajectories that are remembered, oldest first: closed chunks, then those with something pending.

    Changed in place: there may be 36,000 of them, and one owner.
    """

    chunks: list[Chunk] = field(default_factory=list[Chunk])
    closed: int = 0
    """How many of `chunks` are folded for good; they are kept so that nothing counts twice, and late violations do."""
    stable: ArmCounts = field(default_factory=ArmCounts)
    canary: ArmCounts = field(default_factory=ArmCounts)
    changed: set[int] = field(default_factory=set[int])
    """Numbers (not places) of chunks that differ from those saved last."""
    most_open: int = MOST_OPEN
    stale: set[int] = field(default_factory=set[int])
    """Numbers of chunks whose tests have to be computed anew, ..."""
    stale_complaints: set[int] = field(default_factory=set[int])
    """... and of those whose complaints have."""
    heard: int = 0
    """How many of `chunks` are folded for good by the test over complaints."""
    heard_until: float = 0.0
    """Every opinion that was stored before this instant has been folded; after a restart the first batch says so."""
    subjects: int = 0
    """Units that were opened: what the evidence about subjects counts."""
    means: bool = True
    """Whether a subject's later trajectories count too; else a unit is whole with its first."""

    def __post_init__(self) -> None:
        self._places = dict[str, tuple[Chunk, Trajectory]]()
        self.units = dict[str, Unit]()
        """By subject: those that the remembered chunks name."""
        self.pending = sum(trajectory.outcome == PENDING for chunk in self.open for trajectory in chunk.trajectories)
        """Trajectories whose outcome is not settled."""
        self.complained = set[int]()
        """Numbers of chunks in whose trajectories, or units, the canary has a complaint."""
        for chunk in self.chunks:
            for trajectory in chunk.trajectories:
                self._places[trajectory.key] = (chunk, trajectory)
                if trajectory.subject:
                    self._count_in_unit(chunk, trajectory)
                if trajectory.complained and trajectory.canary:
                    self.complained |= self._numbers(chunk, trajectory)
        self.complained -= {chunk.number for chunk in self.chunks[: self.heard]}

    @property
    def open(self) -> list[Chunk]:
        """Chunks that are not folded for good."""
        return self.chunks[self.closed :]

    def arm(self, canary: bool) -> ArmCounts:
        """The totals of one arm."""
        return self.canary if canary else self.stable

    def fold(self, batch: Batch, compared: Compared, rules: Rules) -> None:
        """Take in a batch, then settle trajectories that are past the horizon."""
        for event in batch.events:
            if isinstance(event, Started):
                self._fold_start(event, compared, rules)
            elif isinstance(event, Call):
                self._fold_call(event, compared, rules)
            elif isinstance(event, Score):
                self._fold_score(event, rules)
            else:
                self._fold_opinion(event, rules)
        self._settle_overdue(batch, rules)
        self._settle_complaints(batch, rules)

    def close(self) -> Iterable[Chunk]:
        """Take full chunks in which nothing is pending as folded, oldest first."""
        for chunk in self.open:
            if len(chunk.trajectories) < BLOCK or not all(map(self._is_final, chunk.trajectories)):
                break
            yield chunk
            self.closed += 1

    def close_complaints(self, rules: Rules) -> Iterable[Chunk]:
        """Take full chunks of which no trajectory can be complained of any more as folded, oldest first."""
        silent = self.heard_until - rules.horizon_s
        for chunk in self.chunks[self.heard :]:
            if len(chunk.trajectories) < BLOCK or not all(
                self._is_heard(trajectory, silent) for trajectory in chunk.trajectories
            ):
                break
            yield chunk
            self.heard += 1

    def forget(self, keep: int) -> None:
        """Forget more than `keep` trajectories that are folded for good, oldest first."""
        while self._folded * BLOCK > max(keep, BLOCK):
            self._forget_oldest()

    @property
    def _folded(self) -> int:
        """How many chunks all tests have folded for good."""
        return min(self.closed, self.heard)

    def _is_final(self, trajectory: Trajectory) -> bool:
        """Whether no value of the trajectory, or of the unit that it opened, will change any more."""
        opened = bool(trajectory.subject) and trajectory.place == 0
        return trajectory.done and not (opened and not self.units[trajectory.subject].complete)

    def _is_heard(self, trajectory: Trajectory, silent: float) -> bool:
        """The same of complaints, where those of trajectories that started before the instant `silent` are known."""
        if trajectory.subject and trajectory.place == 0:
            unit = self.units[trajectory.subject]
            return not unit.open and all(member.since < silent for member, _ in unit.members)
        return trajectory.since < silent

    def _forget_oldest(self) -> None:
        """Forget the oldest chunk; the next one remembers its subjects."""
        oldest = self.chunks.pop(0)
        self.closed, self.heard = self.closed - 1, self.heard - 1
        self.changed.discard(oldest.number)
        subjects: list[str] = []
        for trajectory in oldest.trajectories:
            del self._places[trajectory.key]
            if trajectory.subject and trajectory.place == 0:
                subjects.append(trajectory.subject)
                del self.units[trajectory.subject]
        forgotten = oldest.forgotten.with_subjects(subjects)
        if forgotten.bits:
            self.chunks[0].forgotten = forgotten
            self.changed.add(self.chunks[0].number)

    def _fold_start(self, start: Started, compared: Compared, rules: Rules) -> None:
        versions = {STABLE: compared.stable_version, CANARY: compared.canary_version}
        drawn = start.rollout_id == compared.rollout_id and start.weight in compared.weights
        comparable = drawn and MIN_WEIGHT <= start.weight <= 1 - MIN_WEIGHT
        key = key_of(start.trajectory_id)
        if not comparable or versions.get(start.arm) != start.version or key in self._places:
            return
        if self.closed == len(self.chunks) or len(self.chunks[-1].trajectories) == BLOCK:
            if (len(self.chunks) - self._folded + 1) * BLOCK > self.most_open:
                return
            self.chunks.append(Chunk(self.chunks[-1].number + 1 if self.chunks else 0, [], []))
        chunk = self.chunks[-1]
        if start.terms not in chunk.terms:
            chunk.terms.append(start.terms)
        trajectory = Trajectory(key, start.arm == CANARY, start.weight, start.at, chunk.terms.index(start.terms))
        chunk.trajectories.append(trajectory)
        self._places[key] = (chunk, trajectory)
        self.arm(trajectory.canary).started += 1
        self.pending += 1
        if start.subject is not None and start.subject not in compared.split:
            trajectory.subject = start.subject
            trajectory.place = self._place_in_unit(trajectory, rules)
            self._count_in_unit(chunk, trajectory)
        self.subjects += trajectory.place == 0
        self._touch(chunk, trajectory)
        self._touch_complaints(chunk, trajectory)

    def _place_in_unit(self, trajectory: Trajectory, rules: Rules) -> int:
        """The place of a trajectory that has just started, of a subject with a name."""
        unit = self.units.get(trajectory.subject)
        if unit is None:
            return UNCOUNTED if trajectory.subject in self.chunks[0].forgotten else 0
        was_open = unit.open
        if unit.takes(trajectory.since, trajectory.weight, rules.horizon_s):
            return len(unit.members)
        if was_open:
            self._touch_unit(unit)
        return UNCOUNTED

    def _count_in_unit(self, chunk: Chunk, trajectory: Trajectory) -> None:
        """Put a trajectory into the unit in which it counts, if any; one that does not count ends the unit."""
        if trajectory.place == 0:
            self.units[trajectory.subject] = Unit(chunk.number, trajectory, open=self.means)
        unit = self.units.get(trajectory.subject)
        if unit is None:
            return
        if trajectory.place == UNCOUNTED:
            unit.open = False
        else:
            unit.add(trajectory, chunk.terms[trajectory.terms])

    def _fold_call(self, call: Call, compared: Compared, rules: Rules) -> None:
        """When another policy answers, that is a failure of the arm if a call of its own failed and no engine was at
        fault, else no policy's doing.

        Later violations are in the answers of the other policy then, so they count for neither arm.
        """
        place = self._places.get(key_of(call.trajectory_id))
        if place is None:
            self.canary.unannounced += call.first and (call.arm, call.version) == (CANARY, compared.canary_version)
            return
        if place[1].done:
            return
        chunk, one = place
        own = (CANARY, compared.canary_version) if one.canary else (STABLE, compared.stable_version)
        timely = call.at <= one.since + rules.horizon_s
        if (call.arm, call.version) != own and one.outcome == PENDING:
            one.violated = True
            one.spending = one.broken
            self._settle(chunk, one, *((FAILED, 0.0) if one.broken else (MOVED, None)))
        if timely and (one.spending or one.outcome == PENDING):
            one.pay(call)
            self._touch(chunk, one)
        if (call.arm, call.version) != own:
            return
        counts = self.arm(one.canary)
        counts.calls += 1
        counts.errors += call.error
        counts.hung += call.hung
        if call.fault is not None and not one.faulted:
            one.faulted = True
            counts.faulted += 1
            counts.no_model += call.fault == NO_MODEL
        if call.first and one.first is None and timely and call.fault not in NOT_COMPUTED:
            one.first = int(call.error or call.hung)
            counts.first_calls += 1
            counts.unapplied += call.unapplied
        if one.outcome == PENDING:
            one.count(call)
        self._touch(chunk, one)

    def _fold_score(self, score: Score, rules: Rules) -> None:
        """A violation counts once, also that of a trajectory that has settled."""
        place = self._places.get(key_of(score.trajectory_id))
        if place is None:
            return
        chunk, one = place
        counts = self.arm(one.canary)
        if score.violation and not one.violated:
            one.violated = True
            counts.violations += 1
            self.changed.add(chunk.number)
        ends = score.success is not None or not rules.outcomes
        if score.at > one.since + rules.horizon_s:
            return
        if one.outcome != PENDING:
            if ends:
                self._end_spending(chunk, one)
            return
        one.violation |= score.violation
        if ends:
            self._settle(chunk, one, FAILED if score.success is False else SUCCESS, score.reward)
        elif one.reward is None:
            one.reward = score.reward
            self._touch(chunk, one)

    def _fold_opinion(self, opinion: Opinion, rules: Rules) -> None:
        """Opinions and complaints count once each, on the arm that was drawn."""
        place = self._places.get(key_of(opinion.trajectory_id))
        if place is None:
            return
        chunk, one = place
        if opinion.at > one.since + rules.horizon_s or one.since < self.heard_until - rules.horizon_s:
            return
        counts = self.arm(one.canary)
        counts.rated += not one.rated
        one.rated = True
        self.changed.add(chunk.number)
        if opinion.bad and not one.complained:
            counts.complaints += 1
            one.complained = True
            self._touch_complaints(chunk, one)
            if one.canary:
                self.complained |= self._numbers(chunk, one)

    def _settle_complaints(self, batch: Batch, rules: Rules) -> None:
        """No opinion counts any more that is given on a trajectory whose horizon is past."""
        heard_until = max(self.heard_until, batch.as_of if batch.read_until is None else batch.read_until)
        before, silent = self.heard_until - rules.horizon_s, heard_until - rules.horizon_s
        self.heard_until = heard_until
        for chunk in self.chunks[self.heard :]:
            if chunk.trajectories[0].since >= silent:
                return
            if chunk.trajectories[-1].since < before:
                continue
            for trajectory in chunk.trajectories:
                if before <= trajectory.since < silent:
                    self._touch_complaints(chunk, trajectory)

    def _settle(self, chunk: Chunk, one: Trajectory, outcome: int, reward: float | None) -> None:
        one.outcome = outcome
        self.pending -= 1
        one.reward = one.reward if outcome == MISSING else reward
        counts = self.arm(one.canary)
        counts.trajectories += outcome not in (MOVED, UNSCORED)
        counts.failures += outcome == FAILED
        counts.missing += outcome == MISSING
        counts.moved += outcome == MOVED
        counts.unscored += outcome == UNSCORED
        if one.reward is not None:
            counts.rewarded += 1
            counts.reward_total += one.reward
        if one.calls:
            counts.timed += 1
            counts.log_latency += math.log(max(one.latency_ms / one.calls, SHORTEST_MS))
        if not one.spending:
            self._count_cost(one)
        self._touch(chunk, one)

    def _count_cost(self, one: Trajectory) -> None:
        """The cost of a trajectory has settled: for operators. One that was moved says nothing of its arm's cost."""
        if one.outcome in (MOVED, UNSCORED):
            return
        counts = self.arm(one.canary)
        counts.priced += one.priced
        counts.unpriced += not one.priced
        counts.cost_usd += (one.cost_usd or 0.0) * one.priced

    def _end_spending(self, chunk: Chunk, one: Trajectory) -> None:
        """Nothing more is spent on a trajectory that a fallback went on with."""
        if one.spending:
            one.spending = False
            self._count_cost(one)
            self._touch(chunk, one)

    def _settle_overdue(self, batch: Batch, rules: Rules) -> None:
        """Settle trajectories that are past the horizon. Chunks are in the order of starts."""
        now = batch.as_of if batch.read_until is None else batch.read_until
        overdue, scored = now - rules.horizon_s, batch.as_of - rules.horizon_s
        for chunk in self.open:
            if chunk.trajectories[0].since >= overdue:
                return
            for trajectory in chunk.trajectories:
                if trajectory.since >= overdue:
                    continue
                if trajectory.subject and trajectory.place == 0:
                    self._end_unit(trajectory)
                if trajectory.done:
                    continue
                if trajectory.first is None:
                    trajectory.first = 1
                    self._touch(chunk, trajectory)
                self._end_spending(chunk, trajectory)
                if trajectory.outcome == PENDING and trajectory.since < scored:
                    self._settle(chunk, trajectory, MISSING, None)
                elif trajectory.outcome == PENDING and trajectory.since < now - rules.patience_s:
                    self._settle(chunk, trajectory, UNSCORED, None)

    def _end_unit(self, opener: Trajectory) -> None:
        """Nothing more counts in a unit whose horizon is over."""
        unit = self.units[opener.subject]
        if unit.open:
            unit.open = False
            self._touch_unit(unit)

    def _touch(self, chunk: Chunk, trajectory: Trajectory) -> None:
        """The trajectory has changed, and with it the unit in which it counts."""
        self.changed.add(chunk.number)
        self.stale.add(chunk.number)
        if trajectory.subject and trajectory.place > 0:
            self.stale.add(self.units[trajectory.subject].chunk)

    def _touch_complaints(self, chunk: Chunk, trajectory: Trajectory) -> None:
        """What is known of complaints about the trajectory has changed, and with it the unit in which it counts."""
        self.stale_complaints |= self._numbers(chunk, trajectory)

    def _numbers(self, chunk: Chunk, trajectory: Trajectory) -> set[int]:
        """Of the chunks in which a trajectory counts: its own, and that of its unit."""
        in_unit = trajectory.subject and trajectory.place > 0
        return {chunk.number, self.units[trajectory.subject].chunk} if in_unit else {chunk.number}

    def _touch_unit(self, unit: Unit) -> None:
        """Nothing more counts in a unit."""
        self.stale.add(unit.chunk)
        self.stale_complaints.add(unit.chunk)
