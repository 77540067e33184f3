"""A rollout's statistics as its record keeps them, and the window behind them that is too large for it.

`Statistics` is a small value: totals, evidence, the state of the tests, and the names of the chunks in which the window
is stored. `LiveStatistics` is the same while the rollout runs: it folds messages, evaluates the tests and knows which
chunks have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
from msgspec.structs import replace

from ratchet.canary_deployer.domain.cohorts import Cohort, Known, cohort_of
from ratchet.canary_deployer.domain.complaints import ComplaintTest, StoredComplaints
from ratchet.canary_deployer.domain.e_processes import Products
from ratchet.canary_deployer.domain.evidence import Evidence, ProcessState, SequentialTests, Stratum
from ratchet.canary_deployer.domain.failure_streak import Run
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.subjects import FIRST
from ratchet.canary_deployer.domain.trajectories import ArmCounts, Batch, Chunk, Compared, Window

MOMENTS = 240
"""So many are kept. One more, and the one with the closest neighbours goes."""
LEAST_MS = 2_000
"""Moments are at least this far from each other."""


class Trail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the e-values were, between decisions too: a bounded number of moments, evenly spread.

    Columns take a fifth of the room that a map for each moment takes.
    """

    names: tuple[tuple[str, str], ...] = ()
    """Family and metric of each value."""
    at: tuple[int, ...] = ()
    """Milliseconds of Unix time."""
    values: tuple[tuple[float, ...], ...] = ()

    def sampled(self, now: datetime, e_values: Mapping[str, Mapping[str, float]]) -> Trail:
        """The trail with the present values; itself where they are as before, or it is too early for another moment."""
        names = tuple((family, metric) for family, values in e_values.items() for metric in values)
        if names != self.names:  # the first moment, or a deployer with other metrics
            return Trail(names=names).sampled(now, e_values)
        at, row = round(now.timestamp() * 1000), tuple(e_values[family][metric] for family, metric in names)
        if self.at and (at - self.at[-1] < LEAST_MS or row == self.values[-1]):
            return self
        times, rows = [*self.at, at], [*self.values, row]
        if len(times) > MOMENTS:
            # Never the first or the newest: moments stay evenly spread, however long a pause was.
            crowded = min(range(1, len(times) - 1), key=lambda place: times[place + 1] - times[place - 1])
            del times[crowded], rows[crowded]
        return replace(self, at=tuple(times), values=tuple(rows))

    def samples(self) -> Iterator[tuple[datetime, dict[str, dict[str, float]]]]:
        """Every moment and its values."""
        for at, row in zip(self.at, self.values, strict=True):
            values: dict[str, dict[str, float]] = {}
            for (family, metric), value in zip(self.names, row, strict=True):
                values.setdefault(family, {})[metric] = value
            yield datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at), values


DECIMALS = 3
"""Of published centres: more would change the route with every outcome, and help no gateway."""


class StoredStratum(msgspec.Struct, frozen=True):
    """A `Stratum` in the record."""

    weight: float
    count: list[float]
    observed: list[float]
    harm: dict[str, list[float]]


class StoredState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ProcessState` in the record."""

    layout: tuple[str, ...] = ()
    """Of the tests that it is the state of."""
    block: int = 0
    capital: list[float] = []
    peaks: list[float] = []
    wealth: list[float] = []
    unit_wealth: list[float] = []
    strata: list[StoredStratum] = []
    low: list[float | None] = []
    high: list[float | None] = []
    run: Run = Run()
    unit_run: Run = Run()
    spent: float = 1.0
    unit_spent: float = 1.0

    @classmethod
    def of_state(cls, state: ProcessState, layout: tuple[str, ...]) -> StoredState:
        """A state of one rollout, of tests with this layout.

        JSON has no infinity, so an extreme before the first trajectory is None.
        """
        strata = [
            StoredStratum(
                weight=weight,
                count=stratum.count.tolist(),
                observed=stratum.observed.tolist(),
                harm={name: values.tolist() for name, values in stratum.harm.items()},
            )
            for weight, stratum in state.strata.items()
        ]
        return cls(
            layout=layout,
            block=state.block,
            capital=state.capital.tolist(),
            peaks=state.peaks.tolist(),
            wealth=state.wealth.tolist(),
            unit_wealth=state.unit_wealth.tolist(),
            strata=strata,
            low=[value if np.isfinite(value) else None for value in state.low.tolist()],
            high=[value if np.isfinite(value) else None for value in state.high.tolist()],
            run=state.run[0],
            unit_run=state.unit_run[0],
            spent=float(state.spent),
            unit_spent=float(state.unit_spent),
        )

    def state(self) -> ProcessState:
        """The state that was stored."""
        strata = {
            stratum.weight: Stratum(
                np.array(stratum.count),
                np.array(stratum.observed),
                {name: np.array(values) for name, values in stratum.harm.items()},
            )
            for stratum in self.strata
        }
        return ProcessState(
            block=self.block,
            capital=np.array(self.capital),
            peaks=np.array(self.peaks),
            wealth=np.array(self.wealth),
            unit_wealth=np.array(self.unit_wealth),
            strata=strata,
            low=np.array([np.inf if value is None else value for value in self.low]),
            high=np.array([-np.inf if value is None else value for value in self.high]),
            run=(self.run,),
            unit_run=(self.unit_run,),
            spent=np.asarray(self.spent),
            unit_spent=np.asarray(self.unit_spent),
        )


class ChunkName(msgspec.Struct, frozen=True, array_like=True):
    """Where a chunk is stored: under a name that no other state of it ever had."""

    number: int
    name: str


class Statistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """The statistics of a rollout."""

    stable: ArmCounts = msgspec.field(default_factory=ArmCounts)
    canary: ArmCounts = msgspec.field(default_factory=ArmCounts)
    evidence: Evidence = Evidence()
    tests: StoredState = msgspec.field(default=StoredState(), name="kept")
    chunks: tuple[ChunkName, ...] = ()
    closed: int = 0
    """How many of the chunks are folded for good."""
    complaints: StoredComplaints = StoredComplaints()
    heard: int = 0
    """How many of the chunks the test over complaints has folded for good."""
    pending: int = 0
    """Trajectories whose outcome is not settled."""
    subjects: int = 0
    """Subjects that have started, each of which is one unit of evidence."""
    centres: dict[str, float] = {}
    """Published in the route for trajectories that start from now on (see `Evaluation.centres`)."""
    latency_scale_ms: float | None = None
    trail: Trail = Trail()
    """What the e-values were."""


def can_continue(statistics: Statistics, rules: Rules) -> bool:
    """Whether the tests that these rules ask for are those whose state is in the record."""
    stored = statistics.tests
    return not stored.capital or stored.layout == SequentialTests(rules).layout


class LiveStatistics:
    """The statistics of one rollout while they change."""

    def __init__(self, statistics: Statistics, chunks: Sequence[Chunk], rules: Rules) -> None:
        stable, canary = msgspec.structs.replace(statistics.stable), msgspec.structs.replace(statistics.canary)
        self._tests = SequentialTests(rules)
        self.window = Window(
            list(chunks),
            statistics.closed,
            stable,
            canary,
            subjects=statistics.subjects,
            means=FIRST in self._tests.shares,
            heard=statistics.heard,
        )
        stored = statistics.tests
        self._state = stored.state() if stored.capital else self._tests.initial_state()
        self._computed: dict[int, tuple[Cohort, Products]] = {}
        """Cohort and products of open chunks, by number."""
        self._complaint_test = ComplaintTest(self._tests.shares)
        complaints = statistics.complaints
        self._complaint_state = complaints.state() if complaints.capital else self._complaint_test.initial_state()
        self._complaints: dict[int, Products] = {}
        """Of chunks that the test over complaints has not folded for good, by number."""

    def fold(self, batch: Batch, compared: Compared, rules: Rules) -> None:
        """Take in a batch; blocks in which nothing is pending any more are closed."""
        self.window.fold(batch, compared, rules)
        for number in self.window.stale:
            self._computed.pop(number, None)
        for number in self.window.stale_complaints:
            self._complaints.pop(number, None)
        self.window.stale.clear()
        self.window.stale_complaints.clear()
        for chunk in self.window.close():
            self._state = self._tests.close_block(self._state, *self._cohort_and_products(chunk))
            del self._computed[chunk.number]
        for chunk in self.window.close_complaints(rules):
            self._complaint_state = self._complaint_test.close_block(self._complaint_state, self._complained(chunk))
            del self._complaints[chunk.number]
            self.window.complained.discard(chunk.number)
        self.window.forget(rules.keep_seen)

    def record(self, weight: float, names: tuple[ChunkName, ...] = ()) -> Statistics:
        """The statistics as of now, for a canary that has this weight."""
        computed = [self._cohort_and_products(chunk) for chunk in self.window.open]
        cohorts, products = [cohort for cohort, _ in computed], [products for _, products in computed]
        evaluation = self._tests.evaluate(self._state, cohorts, products)
        # Behind the last complaint about the canary no prefix is larger: the test need not look there.
        last = max(self.window.complained, default=-1)
        heard = [chunk for chunk in self.window.chunks[self.window.heard :] if chunk.number <= last]
        complaints = self._complaint_test.evaluate(self._complaint_state, list(map(self._complained, heard)))
        centres = evaluation.centres(np.asarray(min(max(weight, 0.0), 1.0)))
        stable, canary = self.window.stable, self.window.canary
        timed = stable.timed + canary.timed
        scale_ms = float(np.exp((stable.log_latency + canary.log_latency) / timed)) if timed else None
        return Statistics(
            stable=msgspec.structs.replace(stable),
            canary=msgspec.structs.replace(canary),
            evidence=complaints.added_to(evaluation.evidence()),
            tests=StoredState.of_state(self._state, self._tests.layout),
            chunks=names,
            closed=self.window.closed,
            complaints=StoredComplaints.of_state(self._complaint_state),
            heard=self.window.heard,
            pending=self.window.pending,
            subjects=self.window.subjects,
            centres={name: round(float(value), DECIMALS) for name, value in centres.items()},
            latency_scale_ms=None if scale_ms is None else float(f"{scale_ms:.{DECIMALS}g}"),
        )

    def _cohort_and_products(self, chunk: Chunk) -> tuple[Cohort, Products]:
        known = self._computed.get(chunk.number)
        if known is None:
            cohort = self._cohort(chunk)
            known = self._computed[chunk.number] = (cohort, self._tests.products(cohort))
        return known

    def _complained(self, chunk: Chunk) -> Products:
        known = self._complaints.get(chunk.number)
        if known is None:
            known = self._complaints[chunk.number] = self._complaint_test.products(self._cohort(chunk))
        return known

    def _cohort(self, chunk: Chunk) -> Cohort:
        rules, window = self._tests.rules, self.window
        known = Known(rules.cost_cap_usd, silent=window.heard_until - rules.horizon_s)
        return cohort_of(chunk, window.units if FIRST in self._tests.shares else None, known)
