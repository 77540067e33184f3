"""Many simulated rollouts at once, through the product's tests and verdicts: trajectories that take time.

A scene draws both potential outcomes of every trajectory, whatever its arm, and how long each takes to be known. At
each step the product's `SequentialTests` evaluate every rollout and its `decide` judges it; the weight of the
trajectories that start until the next step follows from that. What the fold of messages makes of a history is what
`cohorts` makes of it here: a unit test compares the two.

Arrays are [R, n] (R rollouts, n trajectories in the order of their starts) or [R, n, 2] (arm: stable, canary).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from ratchet.bus.testing import START
from ratchet.canary_deployer.domain.cohorts import Cohort, Costs, Units
from ratchet.canary_deployer.domain.complaints import ComplaintEvidence, ComplaintState, ComplaintTest
from ratchet.canary_deployer.domain.e_processes import BLOCK, Flags, Floats
from ratchet.canary_deployer.domain.evidence import Evaluation, ProcessState, SequentialTests
from ratchet.canary_deployer.domain.rollout import Rollout, State, Verdict
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.subjects import FIRST
from ratchet.canary_deployer.domain.trajectories import (
    FAILED,
    MISSING,
    MOVED,
    PENDING,
    SUCCESS,
    UNSCORED,
    ArmCounts,
    Call,
    Event,
    Opinion,
    Score,
    Started,
    Terms,
)
from ratchet.canary_deployer.domain.verdicts import decide, suspicions
from ratchet.core.contract.state import ServedPolicy
from ratchet.core.contract.turn import BROKE

NEVER = math.inf
MEASURED = (
    "canary",
    "weight",
    "outcome",
    "first",
    "reward",
    "latency",
    "timed",
    "violation",
    "broken_off",
    "complaint",
)
"""What a cohort says of each trajectory by itself."""
AT_ONCE = 50
"""Rollouts that are played together: what fits the processor's cache."""


@dataclass(frozen=True)
class LifeCosts:
    """What every trajectory costs, in units of the cap, [R, n, 2]."""

    spent: Floats
    """Without the calls that have no price."""
    unpriced: Flags


@dataclass(frozen=True)
class Lives:
    """Both potential outcomes of every trajectory, [R, n, 2]; times are seconds after its start."""

    failed: Flags
    known_s: Floats
    """When its outcome is reported; `NEVER` for one that is not."""
    reward: Floats
    latency_ms: Floats
    first_failed: Flags
    first_s: Floats
    """When its first call ends; `NEVER` for one that does not."""
    moved: Flags
    """Whether a lapsed lease, or an engine that does not serve the policy, moves it, if it is the canary's."""
    broke_s: Floats
    """When the engine breaks over one of its calls; `NEVER`, or a time after its report, where it does not. One of the
    canary is moved then; an agent of stable asks again."""
    costs: LifeCosts | None = None
    """None where cost is not compared."""
    complains_s: Floats | None = None
    """When its user complains, [R, n, 2]; `NEVER` where none does; None: no user ever does."""
    subject: NDArray[np.intp] | None = None
    """Whose each trajectory is, [R, n], from 0 on; None: each is its own subject."""


OUTCOMES = tuple(name for name in Lives.__dataclass_fields__ if name not in ("subject", "costs", "complains_s"))


@dataclass(frozen=True)
class Scene:
    """Traffic, both policies, and how the rollout is run."""

    draw: Callable[[np.random.Generator, int, Floats], Lives]
    """Of a generator, R, and the start times [n]."""
    rate: float = 1.0
    """Trajectories a second."""
    seconds: float = 1800.0
    look_s: float = 300.0
    stages: tuple[Stage, ...] = (Stage(0.1, 300, 20), Stage(0.25, 300, 20), Stage(0.5, 300, 20))
    horizon_s: float = 600.0
    silent_s: tuple[float, float] | None = None
    """From when to when the reward computer is away, seconds after the first start."""
    priced: bool = False
    """Whether its lives have costs, which are compared."""
    rules: dict[str, object] = field(default_factory=dict[str, object])
    """A canary that is suspended goes on, as if an operator let it, so that the verdicts by subject are seen."""

    def made_rules(self) -> Rules:
        """The rules of the rollout."""
        plain: dict[str, object] = {"horizon_s": self.horizon_s, "lead_s": 0.0, "soak_s": 0.0}
        rules = Rules(stages=self.stages, **(plain | self.rules))  # pyright: ignore[reportArgumentType] - by name
        return rules.with_cost(1.0) if self.priced else rules


@dataclass(frozen=True)
class Ends:
    """How and when each rollout was decided, [R]; NaN: not."""

    rolled_back_s: Floats
    promoted_s: Floats
    held_s: Floats
    suspended_s: Floats
    """The first time."""
    reasons: list[str]

    @property
    def rolled_back(self) -> int:
        return int((~np.isnan(self.rolled_back_s)).sum())

    @property
    def promoted(self) -> int:
        return int((~np.isnan(self.promoted_s)).sum())

    @property
    def suspended(self) -> int:
        return int((~np.isnan(self.suspended_s)).sum())


def lives(
    rng: np.random.Generator,
    failure: tuple[Floats | float, Floats | float],
    seconds: tuple[Floats, Floats],
    *,
    shape: tuple[int, int],
    reported: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0),
    latency_ms: tuple[float, float] = (1000.0, 1000.0),
    first_failure: tuple[float, float] = (0.0, 0.0),
    dies_at_first: bool = False,
) -> Lives:
    """Lives with these failure rates and durations. The two arms' outcomes are drawn independently.

    `reported`: share of successes and of failures that agents report, of stable and then of the canary.
    `dies_at_first`: an agent whose first call failed reports nothing, and its trajectory is a failure.
    """
    chance = np.stack([np.broadcast_to(np.asarray(p, dtype=np.float64), shape) for p in failure], axis=-1)
    failed = rng.random((*shape, 2)) < chance
    first_failed = rng.random((*shape, 2)) < np.array(first_failure)
    share_reported = np.where(failed, np.array([reported[1], reported[3]]), np.array([reported[0], reported[2]]))
    silent = rng.random((*shape, 2)) >= share_reported
    if dies_at_first:
        silent |= first_failed
    latency = rng.lognormal(0.0, 0.5, (*shape, 2)) * np.array(latency_ms)
    return Lives(
        failed=failed,
        known_s=np.where(silent, NEVER, np.stack(seconds, axis=-1)),
        reward=np.where(failed, 0.0, rng.uniform(0.75, 0.92, (*shape, 2))),
        latency_ms=latency,
        first_failed=first_failed,
        first_s=latency / 1000,
        moved=np.zeros((*shape, 2), dtype=np.bool_),
        broke_s=np.full((*shape, 2), NEVER),
    )


def play(scene: Scene, *, rollouts: int, seed: int) -> Ends:
    """Run the scene's rollouts until each is decided or time is up; the last look is when all is known."""
    return _Play(scene, rollouts, seed).ends()


class _Play:
    def __init__(self, scene: Scene, rollouts: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        count = int(scene.rate * scene.seconds)
        self.scene, self.rules, self.rollouts = scene, scene.made_rules(), rollouts
        self.tests = SequentialTests(self.rules)
        self.start_s = np.arange(count) / scene.rate
        self.lives = scene.draw(rng, rollouts, self.start_s)
        self.draws = rng.random((rollouts, count))
        self.weight = np.full((rollouts, count), np.nan)
        self.canary = np.zeros((rollouts, count), dtype=np.bool_)
        self.centres = {name: np.full((rollouts, count), 0.5) for name in ("reward", "loss", "failure", "latency")}
        if scene.priced:
            self.centres["cost"] = np.full((rollouts, count), Terms().cost)
        self.scale_ms = np.full((rollouts, count), np.nan)
        self.records = [running_record() for _ in range(rollouts)]
        self.stage_s = np.zeros(rollouts)
        self.result = Ends(*(np.full(rollouts, np.nan) for _ in range(4)), reasons=[""] * rollouts)
        self.state: ProcessState = self.tests.initial_state(rollouts)
        self.complaint_test = ComplaintTest(self.tests.shares)
        self.complaint_state: ComplaintState = self.complaint_test.initial_state(rollouts)
        self.opener = np.tile(np.arange(count), (rollouts, 1))
        """Of each trajectory: the one that opened the unit in which it counts, -1 for none."""
        self.subjects = _Subjects(rollouts, self.lives.subject, self.start_s, scene.horizon_s)

    def ends(self) -> Ends:
        """Look after look."""
        scene, begun = self.scene, 0
        known = {name: np.full(self.rollouts, getattr(Terms(), name)) for name in self.centres}
        scale = np.full(self.rollouts, np.nan)
        times = [
            *np.arange(scene.look_s, scene.seconds, scene.look_s),
            scene.seconds,
            scene.seconds + scene.horizon_s + 1,
        ]
        for now in times:
            upto = int(np.searchsorted(self.start_s, now))
            self._begin(slice(begun, upto), known, scale)
            begun = upto
            evaluation, complaints = self._evaluate(begun, now), self._heard(begun, now)
            known = evaluation.centres(self._weights())
            scale = self._scale(begun, now)
            self._judge(evaluation, complaints, begun, now)
            if not np.isnan(self._decided()).any():
                break
        return self.result

    def _begin(self, rows: slice, centres: dict[str, Floats], scale: Floats) -> None:
        """Trajectories start under the weights, centres and scales of this moment."""
        self.weight[:, rows] = self._weights()[:, None]
        self.canary[:, rows] = self.draws[:, rows] < self.weight[:, rows]
        self.scale_ms[:, rows] = scale[:, None]
        for name, values in centres.items():
            self.centres[name][:, rows] = values[:, None]
        if self.lives.subject is not None:
            for place in range(rows.start, rows.stop):
                self.opener[:, place] = self.subjects.begin(place, self.weight)

    def _weights(self) -> Floats:
        weights = (*(stage.weight for stage in self.rules.stages), self.rules.full_weight)
        return np.array([weights[record.stage] for record in self.records])

    def _evaluate(self, begun: int, now: float) -> Evaluation:
        """Close what is known in every rollout, weigh the rest."""
        while (self.state.block + 1) * BLOCK <= begun:
            cohort = self._cohort(self.state.block * BLOCK, (self.state.block + 1) * BLOCK, now)
            if not _is_final(cohort):
                break
            self.state = self.tests.close_block(self.state, cohort, self.tests.products(cohort))
        cuts = range(self.state.block * BLOCK, begun, BLOCK)
        cohorts = [self._cohort(cut, min(cut + BLOCK, begun), now) for cut in cuts]
        return self.tests.evaluate(self.state, cohorts, [self.tests.products(cohort) for cohort in cohorts])

    def _heard(self, begun: int, now: float) -> ComplaintEvidence:
        """The same of complaints, whose blocks close later."""
        test = self.complaint_test
        if self.lives.complains_s is None:
            return test.evaluate(self.complaint_state, [])
        while (self.complaint_state.block + 1) * BLOCK <= begun:
            cut = self.complaint_state.block * BLOCK
            cohort = self._cohort(cut, cut + BLOCK, now)
            if not _is_heard(cohort):
                break
            self.complaint_state = test.close_block(self.complaint_state, test.products(cohort))
        cuts = range(self.complaint_state.block * BLOCK, begun, BLOCK)
        products = [test.products(self._cohort(cut, min(cut + BLOCK, begun), now)) for cut in cuts]
        return test.evaluate(self.complaint_state, products)

    def _cohort(self, first: int, after: int, now: float) -> Cohort:
        """The outcomes of trajectories `first` to `after` that are known at `now`, with the units that they opened."""
        cohort = self._outcomes(slice(first, after), now)
        if self.lives.subject is None or FIRST not in self.tests.shares:
            return cohort
        # What counts in these units started within a horizon of the last of them.
        upto = int(
            np.searchsorted(self.start_s, min(now, self.start_s[after - 1] + self.scene.horizon_s), side="right")
        )
        opener = self.opener[:, first:upto]
        run, place = np.nonzero((opener >= first) & (opener < after))
        wide = self._outcomes(slice(first, upto), now)
        opened = opener[run, place]
        members = Cohort(
            **{name: getattr(wide, name)[run, place] for name in MEASURED},
            costs=wide.costs and Costs(wide.costs.spent[run, place], wide.costs.known[run, place]),
            centres={name: values[run, opened] for name, values in self.centres.items()},
            opens=opened == first + place,
        )
        coming = self.subjects.coming(slice(first, after), now) * cohort.opens
        return replace(cohort, units=Units(members, run * (after - first) + opened - first, coming))

    def _outcomes(self, rows: slice, now: float) -> Cohort:
        """The outcomes of these trajectories that are known at `now`."""
        canary, horizon = self.canary[:, rows], self.scene.horizon_s
        own = {name: self._own(name, rows) for name in OUTCOMES}
        passed = now - self.start_s[rows]
        late = passed > horizon
        reported = (own["known_s"] <= passed) & (own["known_s"] <= horizon)
        outcome = np.where(reported, np.where(own["failed"], FAILED, SUCCESS), np.where(late, MISSING, PENDING))
        scored = self._scored_s(rows, np.minimum(own["known_s"], horizon))
        outcome = np.where(passed < scored, PENDING, outcome)
        patience = self.rules.patience_s
        outcome = np.where((scored > patience) & (passed > patience), UNSCORED, outcome)
        broken_off = own["broke_s"] <= np.minimum(passed, np.minimum(own["known_s"], horizon))
        outcome = np.where((own["moved"] | broken_off) & canary, MOVED, outcome)
        called = (own["first_s"] <= passed) & (own["first_s"] <= horizon)
        first_call = np.where(called, own["first_failed"].astype(float), np.where(late, 1.0, np.nan))
        scale = self.scale_ms[:, rows]
        timely = called & (own["first_s"] <= own["known_s"]) & ~own["first_failed"]
        unanswered = np.where((outcome == MISSING) & ~called, 1.0, np.nan)
        latency = np.where(timely, own["latency_ms"] / (own["latency_ms"] + scale), unanswered)
        return Cohort(
            canary=canary,
            weight=self.weight[:, rows],
            outcome=outcome,
            first=np.where(outcome == MOVED, np.where(np.isnan(first_call), 0.0, first_call), first_call),
            reward=np.where((outcome == FAILED) | (outcome == SUCCESS), own["reward"], np.nan),
            latency=np.where(outcome == PENDING, np.nan, latency),
            timed=~np.isnan(scale),
            violation=np.zeros(canary.shape),
            broken_off=broken_off,
            opens=self.opener[:, rows] == np.arange(rows.start, rows.stop),
            centres={name: values[:, rows] for name, values in self.centres.items()},
            complaint=self._complaints(rows, passed),
            costs=self._costs(rows, outcome, called & (own["first_s"] <= own["known_s"])),
        )

    def _costs(self, rows: slice, outcome: NDArray[np.intp], called: Flags) -> Costs | None:
        """What is spent: half with the first call, the rest when the outcome is known; nothing more by a moved one."""
        if self.lives.costs is None:
            return None
        canary = self.canary[:, rows]
        spent, unpriced = (
            np.where(canary, both[:, rows, 1], both[:, rows, 0])
            for both in (self.lives.costs.spent, self.lives.costs.unpriced)
        )
        settled = (outcome == FAILED) | (outcome == SUCCESS) | (outcome == MISSING)
        paid = spent / 2 * (called.astype(np.float64) + settled)
        return Costs(paid, settled & ~unpriced)

    def _complaints(self, rows: slice, passed: Floats) -> Floats:
        """Whether users have complained, so long after the starts."""
        if self.lives.complains_s is None:
            return np.where(passed > self.scene.horizon_s, 0.0, np.nan) * np.ones(self.canary[:, rows].shape)
        both = self.lives.complains_s[:, rows]
        at_s = np.where(self.canary[:, rows], both[..., 1], both[..., 0])
        silent = np.where(passed > self.scene.horizon_s, 0.0, np.nan)
        return np.where((at_s <= passed) & (at_s <= self.scene.horizon_s), 1.0, silent)

    def _scored_s(self, rows: slice, reported_s: Floats) -> Floats:
        """When an outcome that was reported so long after its start is known, seconds after the start."""
        if self.scene.silent_s is None:
            return reported_s
        begins, ends = (at - self.start_s[rows] for at in self.scene.silent_s)
        return np.where((reported_s >= begins) & (reported_s < ends), ends, reported_s)

    def _own(self, name: str, rows: slice) -> np.ndarray:
        """The values of the arm that was drawn."""
        both = getattr(self.lives, name)[:, rows]
        return np.where(self.canary[:, rows], both[..., 1], both[..., 0])

    def _scale(self, begun: int, now: float) -> Floats:
        """Typical latency of what is known, whichever arm finished sooner: as biased as in the product."""
        rows = slice(0, begun)
        reported = self._own("known_s", rows) <= now - self.start_s[rows]
        logs = np.log(self._own("latency_ms", rows))
        count = reported.sum(axis=1)
        return np.where(count > 0, np.exp((logs * reported).sum(axis=1) / np.maximum(count, 1)), np.nan)

    def _judge(self, evaluation: Evaluation, complaints: ComplaintEvidence, begun: int, now: float) -> None:
        closed = self.state.block * BLOCK
        done = self.canary[:, :closed].sum(axis=1)
        done += (self._outcomes(slice(closed, begun), now).settled & self.canary[:, closed:begun]).sum(axis=1)
        for place in np.flatnonzero(np.isnan(self._decided())).tolist():
            watch = Statistics(
                evidence=complaints.added_to(evaluation.evidence((place,)), (place,)),
                canary=ArmCounts(trajectories=int(done[place])),
                subjects=int((self.opener[place, :begun] == np.arange(begun)).sum()),
            )
            age_s = now - self.stage_s[place]
            record = msgspec.structs.replace(self.records[place], statistics=watch, stage_age_s=age_s)
            decision = decide(record, self.rules)
            self.records[place] = record
            if decision is None:
                continue
            self.result.reasons[place] = decision.reason
            if decision.verdict is Verdict.ADVANCE or self._soaks(record, decision.verdict):
                state = State.RUNNING if decision.verdict is Verdict.ADVANCE else State.SOAKING
                self.records[place] = msgspec.structs.replace(
                    record, state=state, stage=record.stage + 1, stage_base=int(done[place])
                )
                self.stage_s[place] = now
            elif decision.verdict is Verdict.SUSPEND:
                self.result.suspended_s[place] = np.fmin(self.result.suspended_s[place], now)
                self.records[place] = msgspec.structs.replace(record, overruled=suspicions(record))
            elif decision.verdict is Verdict.HOLD:
                self.result.held_s[place] = now
                self.records[place] = msgspec.structs.replace(record, noticed=("sample_ratio",))
            else:
                ended = decision.verdict is Verdict.ROLL_BACK
                (self.result.rolled_back_s if ended else self.result.promoted_s)[place] = now

    def _soaks(self, record: Rollout, verdict: Verdict) -> bool:
        """Whether the promotion is watched first."""
        return verdict is Verdict.PROMOTE and record.state is State.RUNNING and self.rules.soaks

    def _decided(self) -> Floats:
        ends = np.stack([self.result.rolled_back_s, self.result.promoted_s])
        return np.where(np.isnan(ends).all(axis=0), np.nan, np.nansum(ends, axis=0))


class _Subjects:
    """The units of many rollouts, [R, subjects], as the fold keeps them."""

    def __init__(self, rollouts: int, subject: NDArray[np.intp] | None, start_s: Floats, horizon_s: float) -> None:
        shape = (rollouts, int(subject.max()) + 1 if subject is not None else 0)
        self.subject, self.start_s, self.horizon_s = subject, start_s, horizon_s
        self.opener = np.full(shape, -1)
        self.count = np.zeros(shape, dtype=np.intp)
        self.open = np.zeros(shape, dtype=np.bool_)
        self.runs = np.arange(rollouts)

    def begin(self, place: int, weight: Floats) -> NDArray[np.intp]:
        """A trajectory starts in each rollout: the opener of the unit in which it counts, -1 for none."""
        assert self.subject is not None
        at = (self.runs, self.subject[:, place])
        opener = self.opener[at]
        new = opener < 0
        same = weight[self.runs, opener] == weight[:, place]
        in_time = self.start_s[place] <= self.start_s[opener] + self.horizon_s
        counts = new | (self.open[at] & same & in_time & (self.count[at] < FIRST))
        self.opener[at] = np.where(new, place, opener)
        self.count[at] += counts
        self.open[at] = counts & (self.count[at] < FIRST)
        return np.where(counts, self.opener[at], -1)

    def coming(self, rows: slice, now: float) -> Floats:
        """How many may still count in the units that these trajectories opened, if they did, [R, n]."""
        assert self.subject is not None
        at = (self.runs[:, None], self.subject[:, rows])
        going_on = self.open[at] & (now <= self.start_s[rows] + self.horizon_s)
        return np.where(going_on, FIRST - self.count[at], 0).astype(np.float64)


def _is_final(cohort: Cohort) -> bool:
    """Whether nothing in it, or in its units, will change any more."""
    parts = [cohort] if cohort.units is None else [cohort, cohort.units.members]
    done = all((part.settled & ~np.isnan(part.first)).all() for part in parts)
    return done and (cohort.units is None or not cohort.units.coming.any())


def _is_heard(cohort: Cohort) -> bool:
    """The same of complaints."""
    parts = [cohort] if cohort.units is None else [cohort, cohort.units.members]
    heard = not any(np.isnan(part.complaint).any() for part in parts)
    return heard and (cohort.units is None or not cohort.units.coming.any())


@dataclass(frozen=True)
class Played:
    """One rollout of a scene at one weight until some moment: as messages, and as arrays."""

    events: list[Event]
    cohort: Callable[[int], Cohort]
    """Of its first n trajectories."""

    @classmethod
    def until(cls, scene: Scene, now: float) -> Played:
        """Everything that was stored before `now`."""
        play, count = _Play(scene, 1, 3), int(np.searchsorted(np.arange(scene.rate * scene.seconds) / scene.rate, now))
        rows = slice(0, count)
        play._begin(rows, {name: np.array([0.5]) for name in play.centres}, np.array([900.0]))
        own = {name: play._own(name, rows)[0] for name in OUTCOMES}
        events: list[Event] = []
        for place, at in enumerate(play.start_s[rows].tolist()):
            name, canary, weight = f"t{place}", bool(play.canary[0, place]), float(play.weight[0, place])
            arm, version = ("canary", 2) if canary else ("stable", 1)
            mine = {field: values[place].item() for field, values in own.items()}
            called, reported = at + mine["first_s"], at + mine["known_s"]
            failed = bool(mine["first_failed"])
            ms = None if failed else mine["latency_ms"]
            costs = play.lives.costs
            half_usd, unpriced = 0.0, False
            if costs is not None:
                half_usd = float(costs.spent[0, place, int(canary)]) / 2
                unpriced = bool(costs.unpriced[0, place, int(canary)])
            call = Call(name, called, True, arm, version, failed, ms, False, called, called, cost_usd=half_usd)
            end_s = min(mine["known_s"], scene.horizon_s)
            last = replace(call, at=at + end_s, first=False, error=False, latency_ms=None)
            rest = [last, *([replace(last, cost_usd=None)] if unpriced else [])] if costs is not None else []
            score = Score(name, reported, not mine["failed"], mine["reward"], False)
            bad_s = NEVER if play.lives.complains_s is None else play.lives.complains_s[0, place, int(canary)]
            opinions = [Opinion(name, at + bad_s / 2, bad=False), Opinion(name, at + bad_s, bad=True)]
            broke = at + mine["broke_s"]
            again = Call(name, broke, False, "stable", 1, False, None, False, broke, broke)
            if mine["broke_s"] == mine["first_s"]:
                call = replace(call, error=True, latency_ms=None, fault=BROKE)
                breaks = (again,)
            else:
                breaks = (Call(name, broke, False, arm, version, True, None, False, broke, broke, BROKE), again)
            heard = (one for one in (call, *rest, *breaks, score, *opinions) if one.at <= now)
            later = sorted(heard, key=lambda one: one.at)
            events += [Started(name, at, arm, version, weight, "r", Terms(scale_ms=900.0)), *later]
        return cls(events, lambda n: play._cohort(0, n, now))


def counted(scene: Scene, kind: str, rollouts: int) -> int:
    """Rollouts of a scene that ended so: `rolled_back` or `promoted`."""
    parts = range(0, rollouts, AT_ONCE)
    ends = [play(scene, rollouts=min(AT_ONCE, rollouts - first), seed=1000 + first) for first in parts]
    return sum(getattr(end, kind) for end in ends)


def ends_of(states: Sequence[tuple[State, float, str]]) -> Ends:
    """Rollouts that were played one by one."""
    kinds = (State.ROLLED_BACK, State.PROMOTED, State.HELD, State.SUSPENDED)
    times = [np.array([at if state is kind else np.nan for state, at, _ in states]) for kind in kinds]
    return Ends(*times, reasons=[reason for _, _, reason in states])


def running_record() -> Rollout:
    """A rollout whose canary has just got its first traffic."""
    return Rollout(
        rollout_id="r",
        role="support",
        state=State.RUNNING,
        candidate=ServedPolicy(version=2, name="support@2", digest="2"),
        stable=ServedPolicy(version=1, name="support@1", digest="1"),
        created_at=START,
        actor="test",
        stage_since=START,
    )


def exact_interval(hits: int, runs: int) -> tuple[float, float]:
    """Clopper & Pearson's interval of 95 % for a share."""
    tail = 0.025
    low = 0.0 if hits == 0 else _solved(lambda p: 1 - _at_most(hits - 1, runs, p), tail, rising=True)
    high = 1.0 if hits == runs else _solved(lambda p: _at_most(hits, runs, p), tail, rising=False)
    return low, high


def _solved(function: Callable[[float], float], value: float, *, rising: bool) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < value) is rising else (low, middle)
    return (low + high) / 2


def _at_most(hits: int, runs: int, chance: float) -> float:
    """P(Binomial(runs, chance) <= hits)."""
    if chance <= 0 or chance >= 1:
        return 1.0 if chance <= 0 or hits >= runs else 0.0
    logs = [
        math.lgamma(runs + 1)
        - math.lgamma(k + 1)
        - math.lgamma(runs - k + 1)
        + k * math.log(chance)
        + (runs - k) * math.log1p(-chance)
        for k in range(hits + 1)
    ]
    return min(1.0, math.fsum(math.exp(log) for log in logs))
