"""What the trajectories show: every test over closed blocks and the open window behind them.

A block is closed when nothing in it is pending; it is folded into `TestState` once and for good. The open blocks are
weighed anew at each look, pending harms at their bounds. Both go through the same functions, on arrays [..., n] whose
leading axes are rollouts: none in the product, many in simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from ratchet.canary_deployer.domain import e_processes, run_wire
from ratchet.canary_deployer.domain.cohorts import (
    FIRST_CALL,
    SAFETY,
    Cohort,
    before_watermark,
    centre_for_promotion,
    for_promotion,
    for_rollback,
)
from ratchet.canary_deployer.domain.e_processes import (
    RISK_RATIOS,
    SHARPNESS,
    SHIFTS,
    Flags,
    Floats,
    promotion_factors,
    ratio_factors,
    rollback_factors,
    thinning_factors,
)
from ratchet.canary_deployer.domain.rules import FAILURE, LATENCY, MISSED, PROMOTION_METRICS, REWARD, SHARES, Rules
from ratchet.canary_deployer.domain.run_wire import Run
from ratchet.canary_deployer.domain.trajectories import FAILED, MISSING, SUCCESS

COMBINED, SAMPLE_RATIO = "combined", "sample_ratio"
KNOWN_REWARD = "known_reward"
"""Lost reward as rollback sees it: what is not known costs nothing."""
RARE = (FAILURE, MISSED, FIRST_CALL, SAFETY)
"""Harms that conditional thinning tests."""
ROUNDING = 1e-9
"""Sums of harms that differ by less are equal."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Both arms before the watermark under one weight; lists are [..., arm] with the arms stable, canary."""

    count: Floats
    observed: Floats
    harm: dict[str, Floats]


@dataclass(frozen=True, slots=True)
class TestState:
    """Everything that closed blocks have shown."""

    block: int
    """How many blocks are closed."""
    capital: Floats
    """Per stake, before the next block."""
    peaks: Floats
    """Largest e-value of any prefix, per test."""
    wealth: Floats
    """Promotion's, per stake."""
    strata: dict[float, Stratum]
    low: Floats
    """Smallest harm seen, per promotion metric."""
    high: Floats
    run: tuple[Run, ...]
    """One per rollout."""
    spent: Floats
    """Smallest share that any run has used up, [...]."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which stakes belong to which test, under some rules."""

    rules: Rules

    @property
    def tests(self) -> tuple[str, ...]:
        """Names in the order of the last axis of e-values: the combined test, its metrics, and those by themselves."""
        return (COMBINED, *self.rules.metrics, FIRST_CALL, SAFETY, SAMPLE_RATIO)

    @property
    def stakes(self) -> list[tuple[str, int]]:
        """Which harm is bet on, and with how many stakes."""
        metrics = [(name, len(RISK_RATIOS if name in RARE else SHARPNESS)) for name in self.rules.metrics]
        return [*metrics, (FIRST_CALL, len(RISK_RATIOS)), (SAFETY, len(RISK_RATIOS)), (SAMPLE_RATIO, len(SHIFTS))]

    def mixtures(self) -> Floats:
        """[stakes, tests]: how much of each test's capital is on each stake. Columns sum to 1."""
        total = sum(SHARES[name] for name in self.rules.metrics)
        mixed = np.zeros((sum(count for _, count in self.stakes), len(self.tests)))
        row = 0
        for name, count in self.stakes:
            mixed[row : row + count, self.tests.index(name)] = 1 / count
            if name in self.rules.metrics:
                mixed[row : row + count, 0] = SHARES[name] / total / count
            row += count
        return mixed


class SequentialTests:
    """Weighs cohorts under some rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.tests = Layout(rules).tests
        self._mixtures = Layout(rules).mixtures()

    def fresh(self, *shape: int) -> TestState:
        """Nothing has started yet, in rollouts of this shape."""
        promoting = len(self.rules.promotion_metrics)
        return TestState(
            block=0,
            capital=np.full((*shape, len(self._mixtures)), e_processes.first_capital()),
            peaks=np.ones((*shape, len(self.tests))),
            wealth=np.ones((*shape, promoting * len(SHARPNESS))),
            strata={},
            low=np.full((*shape, promoting), np.inf),
            high=np.full((*shape, promoting), -np.inf),
            run=(Run(),) * int(np.prod(shape, dtype=np.intp)),
            spent=np.ones(shape),
        )

    def products(self, cohort: Cohort) -> Floats:
        """Running products of the rollback family's factors, [..., n, stakes]: the costly part, worth keeping."""
        rules, parts = self.rules, list[Floats]()
        for name in (*rules.metrics, FIRST_CALL, SAFETY):
            harm = for_rollback(cohort, name)
            margin = 0.0 if name == SAFETY else rules.margin_of(name)
            if name in RARE:
                parts.append(thinning_factors(cohort.canary, cohort.weight, harm, margin))
                continue
            factors = rollback_factors(cohort.canary, cohort.weight, harm, cohort.centres[name], margin)
            parts.append(np.where(cohort.timed[..., None], factors, 1.0) if name == LATENCY else factors)
        parts.append(ratio_factors(cohort.canary, cohort.weight))
        return e_processes.running_products(np.concatenate(parts, axis=-1))

    def closed(self, standing: TestState, cohort: Cohort, products: Floats) -> TestState:
        """After a full block in which nothing is pending."""
        values = e_processes.prefix_values(products, standing.capital, self._mixtures, standing.block)
        known = self._present(standing, cohort)
        spent, runs = self._runs(standing.run, cohort)
        return replace(
            known,
            block=standing.block + 1,
            capital=e_processes.grown(standing.capital, products[..., -1, :], standing.block),
            peaks=np.maximum(standing.peaks, values.max(axis=-2)),
            run=runs,
            spent=np.minimum(standing.spent, spent),
        )

    def weigh(self, standing: TestState, cohorts: Sequence[Cohort], products: Sequence[Floats]) -> Evaluation:
        """What closed blocks and the open ones behind them show now."""
        capital, block = standing.capital, standing.block
        present = capital @ self._mixtures + e_processes.reserve(block)
        largest = present
        for grown in products:
            values = e_processes.prefix_values(grown, capital, self._mixtures, block)
            largest = np.maximum(largest, values.max(axis=-2))
            capital, block = e_processes.grown(capital, grown[..., -1, :], block), block + 1
        known = standing
        for cohort in cohorts:
            known = self._present(known, cohort)
            if not cohort.settled.all(axis=-1).any():
                break
        spent = standing.spent
        if cohorts:
            spent = np.minimum(spent, self._runs(standing.run, _joined(cohorts))[0])
        return Evaluation(self.rules, self.tests, np.maximum(standing.peaks, largest), largest[..., 0], known, spent)

    def _present(self, standing: TestState, cohort: Cohort) -> TestState:
        """Promotion's wealth, strata and extremes with the trajectories of a cohort that are before the watermark."""
        rules, before = self.rules, before_watermark(cohort)
        harms = {name: for_promotion(cohort, name) for name in PROMOTION_METRICS}
        harms[KNOWN_REWARD] = for_rollback(cohort, REWARD)
        parts = list[Floats]()
        for name in rules.promotion_metrics:
            centre = centre_for_promotion(cohort, name)
            factors = promotion_factors(cohort.canary, cohort.weight, harms[name], centre, rules.margin_of(name))
            counts = before & cohort.timed if name == LATENCY else before
            parts.append(np.where(counts[..., None], factors, 1.0))
        chosen = np.stack([harms[name] for name in rules.promotion_metrics], axis=-1)
        return replace(
            standing,
            wealth=e_processes.capped(standing.wealth, np.concatenate(parts, axis=-1), rules.ceiling),
            strata=_with_strata(standing.strata, cohort, harms, before),
            low=np.minimum(standing.low, np.where(before[..., None], chosen, np.inf).min(axis=-2)),
            high=np.maximum(standing.high, np.where(before[..., None], chosen, -np.inf).max(axis=-2)),
        )

    def _runs(self, before: tuple[Run, ...], cohort: Cohort) -> tuple[Floats, tuple[Run, ...]]:
        """The wire's state in each rollout."""
        shape, n = cohort.canary.shape[:-1], cohort.canary.shape[-1]
        failed = (cohort.outcome == FAILED).reshape(-1, n)
        spared = ((cohort.outcome == SUCCESS) | (cohort.outcome == MISSING)).reshape(-1, n)
        canary = cohort.canary.reshape(-1, n)
        margin = self.rules.margin
        rows = zip(before, canary, failed, spared, strict=True)
        found = [run_wire.runs(run, arm, bad, good, margin) for run, arm, bad, good in rows]
        return np.array([spent for spent, _ in found]).reshape(shape), tuple(run for _, run in found)


@dataclass(frozen=True)
class Evaluation:
    """What a look shows, in one rollout or in many."""

    rules: Rules
    tests: tuple[str, ...]
    peaks: Floats
    """Largest e-value of any prefix, per test."""
    caution: Floats
    """Largest combined rollback e-value of a prefix that reaches into the open window."""
    known: TestState
    """Closed blocks and what is before the watermark."""
    spent: Floats
    """Smallest share that any run of failing canary trajectories has used up."""

    @cached_property
    def promotion(self) -> Floats:
        """Present e-values, [..., promotion metrics]."""
        wealth = self.known.wealth
        return wealth.reshape(*wealth.shape[:-1], -1, len(SHARPNESS)).mean(axis=-1, dtype=np.float64)

    @cached_property
    def count(self) -> Floats:
        """Trajectories before the watermark, [..., arm]."""
        return _sum([stratum.count for stratum in self.known.strata.values()], self.spent.shape)

    @cached_property
    def coverage(self) -> Floats:
        """Share of them whose outcome is known, [..., arm]; NaN without any."""
        observed = _sum([stratum.observed for stratum in self.known.strata.values()], self.spent.shape)
        return np.divide(observed, self.count, out=np.full(observed.shape, np.nan), where=self.count > 0)

    @cached_property
    def differences(self) -> dict[str, Floats]:
        """By metric: harm of the canary minus that of stable, by stage, weighted by their sizes; NaN while unknown.

        Stages with both arms count: pooled means would compare the canary of one hour with stable of another.
        """
        return {metric: self._difference(metric) for metric in PROMOTION_METRICS}

    def _difference(self, metric: str) -> Floats:
        total, size = np.zeros(self.spent.shape), np.zeros(self.spent.shape)
        for stratum in self.known.strata.values():
            both = (stratum.count > 0).all(axis=-1)
            means = stratum.harm[metric] / np.maximum(stratum.count, 1)
            total += np.where(both, stratum.count.sum(axis=-1) * (means[..., 1] - means[..., 0]), 0.0)
            size += np.where(both, stratum.count.sum(axis=-1), 0.0)
        return np.divide(total, size, out=np.full(total.shape, np.nan), where=size > 0)

    def centres(self, weight: Floats) -> dict[str, Floats]:
        """What trajectories that start from now on are best bet around, [...] by name of `Terms`.

        The centre at which Z varies least: the mean harms of both arms so far, each with the other's weight. Whatever
        it is, it was known before those trajectories started: a bad centre costs power and nothing else.
        """
        names = {"reward": KNOWN_REWARD, "loss": REWARD, "failure": FAILURE, "latency": LATENCY}
        return {name: self._centre(metric, weight) for name, metric in names.items()}

    def _centre(self, metric: str, weight: Floats) -> Floats:
        harm = _sum([stratum.harm[metric] for stratum in self.known.strata.values()], self.spent.shape)
        shrunk = (harm + 0.5) / (self.count + 1)
        return np.clip((1 - weight) * shrunk[..., 1] + weight * shrunk[..., 0], 0.0, 1.0)

    def evidence(self, place: tuple[int, ...] = ()) -> Evidence:
        """As the verdict takes it: one rollout, `()` when there is only one."""
        rules = self.rules
        flat = self.known.low[place] >= self.known.high[place] - ROUNDING
        positive = flat & (self.known.high[place] > ROUNDING)
        return Evidence(
            rollback=dict(zip(self.tests, self.peaks[place].tolist(), strict=True)),
            caution=float(self.caution[place]),
            promotion=dict(zip(rules.promotion_metrics, self.promotion[place].tolist(), strict=True)),
            differences=_known_only({name: float(values[place]) for name, values in self.differences.items()}),
            coverage=_known_only(dict(zip(("stable", "canary"), self.coverage[place].tolist(), strict=True))),
            counted={name: int(n) for name, n in zip(("stable", "canary"), self.count[place].tolist(), strict=True)},
            constant=tuple(
                name for name, is_so in zip(rules.promotion_metrics, positive.tolist(), strict=True) if is_so
            ),
            varies=not bool(flat.all()),
            run=float(self.spent[place]),
        )


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rollout shows at its last look."""

    rollback: dict[str, float] = {}
    """Largest e-value of any prefix: `combined` and its metrics, `first_call`, `safety`, `sample_ratio`."""
    caution: float = 1.0
    """Largest combined rollback e-value of a recent prefix."""
    promotion: dict[str, float] = {}
    """E-value at the present watermark, by metric."""
    differences: dict[str, float] = {}
    """Canary minus stable before the watermark, stratified by stage; absent while unknown."""
    coverage: dict[str, float] = {}
    """By arm: share of outcomes before the watermark that are known."""
    counted: dict[str, int] = {}
    """By arm: trajectories before the watermark."""
    constant: tuple[str, ...] = ()
    """Promotion metrics on which every trajectory did the same positive harm: they show nothing."""
    varies: bool = False
    """Whether any promotion metric was not the same throughout."""
    run: float = 1.0
    """Smallest share of false alarms that a run of failing canary trajectories has used up."""


def _with_strata(
    strata: dict[float, Stratum], cohort: Cohort, harms: dict[str, Floats], before: Flags
) -> dict[float, Stratum]:
    known = (cohort.outcome == SUCCESS) | (cohort.outcome == FAILED)
    after = dict(strata)
    for weight in np.unique(cohort.weight[before]).tolist():
        rows = before & (cohort.weight == weight)
        arms = np.stack([rows & ~cohort.canary, rows & cohort.canary], axis=-2)
        count = arms.sum(axis=-1).astype(np.float64)
        observed = (arms & known[..., None, :]).sum(axis=-1).astype(np.float64)
        harm = {name: (arms * values[..., None, :]).sum(axis=-1) for name, values in harms.items()}
        old = after.get(weight)
        if old is not None:
            count, observed = count + old.count, observed + old.observed
            harm = {name: values + old.harm[name] for name, values in harm.items()}
        after[weight] = Stratum(count, observed, harm)
    return after


def _joined(cohorts: Sequence[Cohort]) -> Cohort:
    if len(cohorts) == 1:
        return cohorts[0]

    def one(name: str) -> np.ndarray:
        return np.concatenate([getattr(cohort, name) for cohort in cohorts], axis=-1)

    names = ("canary", "weight", "outcome", "first", "reward", "latency", "timed", "violation")
    return Cohort(*(one(name) for name in names), centres={})


def _sum(parts: Sequence[Floats], shape: tuple[int, ...]) -> Floats:
    return np.sum(parts, axis=0) if parts else np.zeros((*shape, 2))


def _known_only(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not np.isnan(value)}
