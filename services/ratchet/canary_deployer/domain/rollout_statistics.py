"""A rollout's statistics as the record keeps them, and the window behind them that is too large for it.

`Statistics` is a small value: totals, evidence, what closed blocks have shown, and the names of the chunks in which the
window is stored. `LiveStatistics` is the same while it is driven: it folds, weighs and says which chunks have changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from ratchet.canary_deployer.domain.cohorts import Cohort, cohort_of
from ratchet.canary_deployer.domain.e_processes import Floats
from ratchet.canary_deployer.domain.evidence import Evidence, SequentialTests, Stratum, TestState
from ratchet.canary_deployer.domain.rules import Rules
from ratchet.canary_deployer.domain.run_wire import Run
from ratchet.canary_deployer.domain.trajectories import ArmCounts, Batch, Chunk, Compared, Window

DECIMALS = 3
"""Of published centres: a route that changed with every outcome would tell gateways nothing more."""


class StoredStratum(msgspec.Struct, frozen=True):
    """A `Stratum` in the record."""

    weight: float
    count: list[float]
    observed: list[float]
    harm: dict[str, list[float]]


class StoredTests(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `TestState` in the record."""

    block: int = 0
    capital: list[float] = []
    peaks: list[float] = []
    wealth: list[float] = []
    strata: list[StoredStratum] = []
    low: list[float | None] = []
    high: list[float | None] = []
    run: Run = Run()
    spent: float = 1.0


class ChunkName(msgspec.Struct, frozen=True, array_like=True):
    """Where a chunk is stored: under a name that no other state of it ever had."""

    number: int
    name: str


class Statistics(msgspec.Struct, frozen=True, omit_defaults=True):
    """The statistics of a rollout."""

    stable: ArmCounts = msgspec.field(default_factory=ArmCounts)
    canary: ArmCounts = msgspec.field(default_factory=ArmCounts)
    evidence: Evidence = Evidence()
    kept: StoredTests = StoredTests()
    chunks: tuple[ChunkName, ...] = ()
    closed: int = 0
    """How many of the chunks are folded for good."""
    pending: int = 0
    """Trajectories whose outcome is not settled."""
    centres: dict[str, float] = {}
    """What the route says to trajectories that start from now on (see `Evaluation.centres`)."""
    latency_scale_ms: float | None = None


class LiveStatistics:
    """The statistics of one rollout while they change."""

    def __init__(self, watch: Statistics, chunks: Sequence[Chunk], rules: Rules) -> None:
        self.window = Window(
            list(chunks), watch.closed, msgspec.structs.replace(watch.stable), msgspec.structs.replace(watch.canary)
        )
        self._rules = rules
        self._court = SequentialTests(rules)
        self._standing = _standing(watch.kept) if watch.kept.capital else self._court.fresh()
        self._open: dict[int, tuple[Cohort, Floats]] = {}

    def fold(self, batch: Batch, compared: Compared, rules: Rules) -> None:
        """Take in a batch; blocks in which nothing is pending any more are closed."""
        self.window.fold(batch, compared, rules)
        for number in self.window.stale:
            self._open.pop(number, None)
        self.window.stale.clear()
        for chunk in self.window.close(rules.keep_seen):
            cohort, products = self._computed(chunk)
            self._standing = self._court.closed(self._standing, cohort, products)
            del self._open[chunk.number]

    def record(self, weight: float, names: tuple[ChunkName, ...] = ()) -> Statistics:
        """The record of what is known now, for a canary that has this weight."""
        computed = [self._computed(chunk) for chunk in self.window.open]
        weighed = self._court.weigh(
            self._standing, [cohort for cohort, _ in computed], [products for _, products in computed]
        )
        centres = weighed.centres(np.asarray(min(max(weight, 0.0), 1.0)))
        stable, canary = self.window.stable, self.window.canary
        timed = stable.timed + canary.timed
        scale_ms = float(np.exp((stable.log_latency + canary.log_latency) / timed)) if timed else None
        return Statistics(
            stable=msgspec.structs.replace(stable),
            canary=msgspec.structs.replace(canary),
            evidence=weighed.evidence(),
            kept=_kept(self._standing),
            chunks=names,
            closed=self.window.closed,
            pending=self.window.pending,
            centres={name: round(float(value), DECIMALS) for name, value in centres.items()},
            latency_scale_ms=None if scale_ms is None else float(f"{scale_ms:.{DECIMALS}g}"),
        )

    def _computed(self, chunk: Chunk) -> tuple[Cohort, Floats]:
        known = self._open.get(chunk.number)
        if known is None:
            cohort = cohort_of(chunk)
            known = self._open[chunk.number] = (cohort, self._court.products(cohort))
        return known


def _kept(standing: TestState) -> StoredTests:
    return StoredTests(
        block=standing.block,
        capital=standing.capital.tolist(),
        peaks=standing.peaks.tolist(),
        wealth=standing.wealth.tolist(),
        strata=[
            StoredStratum(
                weight=weight,
                count=stratum.count.tolist(),
                observed=stratum.observed.tolist(),
                harm={name: values.tolist() for name, values in stratum.harm.items()},
            )
            for weight, stratum in standing.strata.items()
        ],
        low=[value if np.isfinite(value) else None for value in standing.low.tolist()],
        high=[value if np.isfinite(value) else None for value in standing.high.tolist()],
        run=standing.run[0],
        spent=float(standing.spent),
    )


def _standing(kept: StoredTests) -> TestState:
    strata = {
        one.weight: Stratum(
            np.array(one.count), np.array(one.observed), {name: np.array(values) for name, values in one.harm.items()}
        )
        for one in kept.strata
    }
    return TestState(
        block=kept.block,
        capital=np.array(kept.capital),
        peaks=np.array(kept.peaks),
        wealth=np.array(kept.wealth),
        strata=strata,
        low=np.array([np.inf if value is None else value for value in kept.low]),
        high=np.array([-np.inf if value is None else value for value in kept.high]),
        run=(kept.run,),
        spent=np.asarray(kept.spent),
    )
