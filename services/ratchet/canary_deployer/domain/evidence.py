"""What the trajectories show: every test over closed blocks and the open window behind them.

A block is closed when nothing in it is pending; it is folded into `ProcessState` once and for good. The open blocks are
evaluated anew every time, pending harms at their bounds. Both go through the same functions, on arrays [..., n] whose
leading axes are rollouts: none in the product, many in simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from ratchet.canary_deployer.domain import failure_streak
from ratchet.canary_deployer.domain.cohorts import (
    FIRST_CALL,
    SAFETY,
    Cohort,
    before_watermark,
    centre_for_promotion,
    for_promotion,
    for_rollback,
)
from ratchet.canary_deployer.domain.confidence import Limits, ShareArms, ShareDifference, limits_of, share_difference
from ratchet.canary_deployer.domain.e_processes import (
    FIRST_CAPITAL,
    RISK_RATIOS,
    SHARPNESS,
    SHIFTS,
    Flags,
    Floats,
    capped_wealth,
    grown_capital,
    prefix_values,
    promotion_factors,
    ratio_factors,
    reserve,
    rollback_factors,
    running_products,
    thinning_factors,
)
from ratchet.canary_deployer.domain.failure_streak import Run
from ratchet.canary_deployer.domain.rules import FAILURE, LATENCY, MISSED, PROMOTION_METRICS, REWARD, SHARES, Rules
from ratchet.canary_deployer.domain.trajectories import FAILED, MISSING, MOVED, SUCCESS

COMBINED, SAMPLE_RATIO = "combined", "sample_ratio"
KNOWN_REWARD = "known_reward"
"""Lost reward as rollback counts it: an unknown one costs nothing."""
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
class ProcessState:
    """The state of all tests after the closed blocks."""

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
    """Smallest harm so far, per promotion metric."""
    high: Floats
    run: tuple[Run, ...]
    """One per rollout."""
    spent: Floats
    """Smallest share that any run has used up, [...]."""


class SequentialTests:
    """All tests of a rollout under some rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.names = (COMBINED, *rules.metrics, FIRST_CALL, SAFETY, SAMPLE_RATIO)
        """In the order of the last axis of e-values."""
        stakes = [(name, len(RISK_RATIOS if name in RARE else SHARPNESS)) for name in rules.metrics]
        stakes += [(FIRST_CALL, len(RISK_RATIOS)), (SAFETY, len(RISK_RATIOS)), (SAMPLE_RATIO, len(SHIFTS))]
        shares = sum(SHARES[name] for name in rules.metrics)
        self._mixtures = np.zeros((sum(count for _, count in stakes), len(self.names)))
        """[stakes, tests]: how much of each test's capital is on each stake. Columns sum to 1."""
        row = 0
        for name, count in stakes:
            self._mixtures[row : row + count, self.names.index(name)] = 1 / count
            if name in rules.metrics:
                self._mixtures[row : row + count, 0] = SHARES[name] / shares / count
            row += count

    def initial_state(self, *shape: int) -> ProcessState:
        """Before the first start, in rollouts of this shape."""
        promoting = len(self.rules.promotion_metrics)
        return ProcessState(
            block=0,
            capital=np.full((*shape, len(self._mixtures)), FIRST_CAPITAL),
            peaks=np.ones((*shape, len(self.names))),
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
        return running_products(np.concatenate(parts, axis=-1))

    def close_block(self, state: ProcessState, cohort: Cohort, products: Floats) -> ProcessState:
        """The state after a full block in which nothing is pending."""
        values = prefix_values(products, state.capital, self._mixtures, state.block)
        spent, runs = self._runs(state.run, [cohort])
        return replace(
            self._up_to_watermark(state, cohort),
            block=state.block + 1,
            capital=grown_capital(state.capital, products[..., -1, :], state.block),
            peaks=np.maximum(state.peaks, values.max(axis=-2)),
            run=runs,
            spent=np.minimum(state.spent, spent),
        )

    def evaluate(self, state: ProcessState, cohorts: Sequence[Cohort], products: Sequence[Floats]) -> Evaluation:
        """The closed blocks and the open ones behind them, as they are now."""
        capital, block = state.capital, state.block
        largest = capital @ self._mixtures + reserve(block)
        for running in products:
            values = prefix_values(running, capital, self._mixtures, block)
            largest = np.maximum(largest, values.max(axis=-2))
            capital, block = grown_capital(capital, running[..., -1, :], block), block + 1
        known = state
        for cohort in cohorts:
            known = self._up_to_watermark(known, cohort)
            if not cohort.settled.all(axis=-1).any():
                break
        spent = np.minimum(state.spent, self._runs(state.run, cohorts)[0]) if cohorts else state.spent
        return Evaluation(self.rules, self.names, np.maximum(state.peaks, largest), largest[..., 0], known, spent)

    def _up_to_watermark(self, state: ProcessState, cohort: Cohort) -> ProcessState:
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
            state,
            wealth=capped_wealth(state.wealth, np.concatenate(parts, axis=-1), rules.ceiling),
            strata=_with_cohort(state.strata, cohort, harms, before),
            low=np.minimum(state.low, np.where(before[..., None], chosen, np.inf).min(axis=-2)),
            high=np.maximum(state.high, np.where(before[..., None], chosen, -np.inf).max(axis=-2)),
        )

    def _runs(self, before: tuple[Run, ...], cohorts: Sequence[Cohort]) -> tuple[Floats, tuple[Run, ...]]:
        """The share that failure streaks use up in each rollout, and the run that is under way after the cohorts."""
        canary = np.concatenate([cohort.canary for cohort in cohorts], axis=-1)
        outcome = np.concatenate([cohort.outcome for cohort in cohorts], axis=-1)
        shape, n = canary.shape[:-1], canary.shape[-1]
        broken_off = np.concatenate([cohort.broken_off for cohort in cohorts], axis=-1)
        failed = ((outcome == FAILED) | ((outcome == MOVED) & broken_off)).reshape(-1, n)
        spared = (((outcome == SUCCESS) | (outcome == MISSING)) & ~broken_off).reshape(-1, n)
        rollouts = zip(before, canary.reshape(-1, n), failed, spared, strict=True)
        results = [failure_streak.runs(*rollout, margin=self.rules.margin) for rollout in rollouts]
        return np.array([spent for spent, _ in results]).reshape(shape), tuple(run for _, run in results)


@dataclass(frozen=True)
class Evaluation:
    """The results of all tests at one moment, in one rollout or in many."""

    rules: Rules
    names: tuple[str, ...]
    """Of the tests."""
    peaks: Floats
    """Largest e-value of any prefix, per test."""
    caution: Floats
    """Largest combined rollback e-value of a prefix that reaches into the open window."""
    known: ProcessState
    """Closed blocks and the trajectories before the watermark."""
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
        return self._total([stratum.count for stratum in self.known.strata.values()])

    @cached_property
    def coverage(self) -> Floats:
        """Share of them whose outcome is known, [..., arm]; NaN without any."""
        observed = self._total([stratum.observed for stratum in self.known.strata.values()])
        return np.divide(observed, self.count, out=np.full(observed.shape, np.nan), where=self.count > 0)

    @cached_property
    def differences(self) -> dict[str, Floats]:
        """By metric: harm of the canary minus that of stable, by stage, weighted by their sizes; NaN while unknown.

        Stages with both arms count: pooled means would compare the canary of one hour with stable of another.
        """
        differences: dict[str, Floats] = {}
        for metric in PROMOTION_METRICS:
            total, size = np.zeros(self.spent.shape), np.zeros(self.spent.shape)
            for stratum in self.known.strata.values():
                both = (stratum.count > 0).all(axis=-1)
                means = stratum.harm[metric] / np.maximum(stratum.count, 1)
                total += np.where(both, stratum.count.sum(axis=-1) * (means[..., 1] - means[..., 0]), 0.0)
                size += np.where(both, stratum.count.sum(axis=-1), 0.0)
            differences[metric] = np.divide(total, size, out=np.full(total.shape, np.nan), where=size > 0)
        return differences

    def centres(self, weight: Floats) -> dict[str, Floats]:
        """The best centres for trajectories that start from now on, [...] by name of `Terms`.

        The centre at which Z varies least: the mean harms of both arms so far, each with the other's weight. It is
        known before those trajectories start, so a bad centre costs power and nothing else.
        """
        centres: dict[str, Floats] = {}
        for name, metric in (("reward", KNOWN_REWARD), ("loss", REWARD), ("failure", FAILURE), ("latency", LATENCY)):
            harm = self._total([stratum.harm[metric] for stratum in self.known.strata.values()])
            shrunk = (harm + 0.5) / (self.count + 1)
            centres[name] = np.clip((1 - weight) * shrunk[..., 1] + weight * shrunk[..., 0], 0.0, 1.0)
        return centres

    def evidence(self, place: tuple[int, ...] = ()) -> Evidence:
        """The evidence of one rollout for its verdict; its place is `()` when there is only one."""
        metrics = self.rules.promotion_metrics
        flat = self.known.low[place] >= self.known.high[place] - ROUNDING
        positive = flat & (self.known.high[place] > ROUNDING)
        coverage = dict(zip(("stable", "canary"), self.coverage[place].tolist(), strict=True))
        differences = {name: float(values[place]) for name, values in self.differences.items()}
        known = {name: self._arms(name, place) for name, value in differences.items() if not np.isnan(value)}
        return Evidence(
            rollback=dict(zip(self.names, self.peaks[place].tolist(), strict=True)),
            caution=float(self.caution[place]),
            promotion=dict(zip(metrics, self.promotion[place].tolist(), strict=True)),
            differences={name: differences[name] for name in known},
            coverage={arm: share for arm, share in coverage.items() if not np.isnan(share)},
            counted={name: int(n) for name, n in zip(("stable", "canary"), self.count[place].tolist(), strict=True)},
            constant=tuple(name for name, is_so in zip(metrics, positive.tolist(), strict=True) if is_so),
            varies=not bool(flat.all()),
            run=float(self.spent[place]),
            limits={name: limits_of(shares) for name, shares in known.items()},
            by_share={name: tuple(share_difference(share) for share in shares) for name, shares in known.items()},
        )

    def _arms(self, metric: str, place: tuple[int, ...]) -> list[ShareArms]:
        """Both arms under each share of traffic that both have trajectories of, smallest share first."""
        both = [
            ShareArms(weight, tuple(stratum.count[place].tolist()), tuple(stratum.harm[metric][place].tolist()))
            for weight, stratum in sorted(self.known.strata.items())
        ]
        return [arms for arms in both if all(arms.count)]

    def _total(self, parts: Sequence[Floats]) -> Floats:
        return np.sum(parts, axis=0) if parts else np.zeros((*self.spent.shape, 2))


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of all tests of one rollout when it was last evaluated."""

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
    limits: dict[str, Limits] = {}
    """Of each difference, at every moment at once (`confidence.py`)."""
    by_share: dict[str, tuple[ShareDifference, ...]] = {}
    """The differences by the canary's share of traffic."""


def _with_cohort(
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
