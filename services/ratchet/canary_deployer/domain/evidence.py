"""What the trajectories show: every test over closed blocks and the open window behind them.

A block is closed when nothing in it, and in the units that it opened, is pending; it is folded into `ProcessState` once
and for good. The open blocks are evaluated anew every time, pending harms at their bounds. Both go through the same
functions, on arrays [..., n] whose leading axes are rollouts: none in the product, many in simulations.

Every test is made twice: by trajectory, and by subject (`subjects.py`), where each unit's factor stands at the place of
the trajectory that opened it. What is by subject is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    folded,
    for_promotion,
    for_rollback,
    mean_promotion_gain,
    mean_rollback_gain,
    measured_latency,
    promotion_gain,
    rollback_gain,
    units_settled,
)
from ratchet.canary_deployer.domain.e_processes import (
    FIRST_CAPITAL,
    RISK_RATIOS,
    SHARPNESS,
    SHIFTS,
    Flags,
    Floats,
    Products,
    capped_wealth,
    grown_capital,
    largest_prefix,
    prefix_values,
    promotion_factors,
    ratio_factors,
    rollback_factors,
    running_products,
    thinning_factors,
)
from ratchet.canary_deployer.domain.failure_streak import Run
from ratchet.canary_deployer.domain.rules import (
    COMPLAINTS,
    COST,
    COST_MARGIN,
    COSTS,
    FAILURE,
    LATENCY,
    MISSED,
    OVER_CAP,
    PROMOTION_METRICS,
    REWARD,
    Rules,
)
from ratchet.canary_deployer.domain.subjects import FIRST
from ratchet.canary_deployer.domain.trajectories import FAILED, MISSING, MOVED, SUCCESS, Terms
from ratchet.core.rules.confidence import (
    Limits,
    ShareArms,
    ShareCosts,
    ShareDifference,
    cost_limits_of,
    limits_of,
    share_cost_difference,
    share_difference,
)

COMBINED, SAMPLE_RATIO = "combined", "sample_ratio"
FAR_WORSE = "far_worse"
"""Failures beyond `Rules.far_margin`, by trajectory: takes the last traffic from a canary that is suspended."""
KNOWN_REWARD = "known_reward"
"""Lost reward as rollback counts it: an unknown one costs nothing."""
PRICED, SPENT, SQUARED = "priced", "spent", "squared"
"""Of trajectories whose cost is known: their number, the sums of their costs in units of the cap, and of squares."""
RARE = (FAILURE, MISSED, OVER_CAP, FIRST_CALL, SAFETY)
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
    """Promotion's by trajectory, per stake."""
    unit_wealth: Floats
    """Promotion's by subject, per k, metric and stake."""
    strata: dict[float, Stratum]
    low: Floats
    """Smallest harm so far, per promotion metric that is no cost: a cost differs by arm also where all are equal."""
    high: Floats
    run: tuple[Run, ...]
    """One per rollout: of trajectories, ..."""
    unit_run: tuple[Run, ...]
    """... and of the first ones of subjects."""
    spent: Floats
    """Smallest share that any run has used up, [...], ..."""
    unit_spent: Floats
    """... and any run of subjects."""


class SequentialTests:
    """All tests of a rollout under some rules."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.unit_names = (COMBINED, *rules.metrics, FIRST_CALL, SAFETY)
        """Tests by subject, in the order of the last axis of e-values; behind them ..."""
        self.names = (*self.unit_names, SAMPLE_RATIO, *((FAR_WORSE,) if rules.kept_small else ()))
        """... those by trajectory."""
        self._compared = (*rules.metrics, FIRST_CALL, SAFETY)
        self.results = tuple(name for name in rules.promotion_metrics if name not in COSTS)
        """Promotion metrics that say what comes of a trajectory."""
        self.shown = (*PROMOTION_METRICS, *(() if rules.cost_cap_usd is None else (OVER_CAP,)))
        """Metrics of which a difference in the harm is shown."""
        self.shares = {1: 1 - rules.mean_share} | ({FIRST: rules.mean_share} if rules.mean_share else {})
        """Of each k in the tests by subject."""
        self._mixtures = self._made_mixtures()
        """[stakes, tests]: how much of each test's capital is on each stake. Columns sum to 1."""
        self._unit_stakes = int((self._mixtures[:, : len(self.unit_names)] > 0).any(axis=1).sum())
        """The first ones, of the tests by subject."""

    @property
    def layout(self) -> tuple[str, ...]:
        """What the numbers of a `ProcessState` stand for: a state of other tests means something else here."""
        shares = (f"{share:g} of k={k}" for k, share in self.shares.items())
        return (*shares, *self.names, "promotion", *self.rules.promotion_metrics, COMPLAINTS)

    def _made_mixtures(self) -> Floats:
        """Stakes stand as in `products`: by subject for each k, then by trajectory."""
        units, shares = len(self.unit_names), self.rules.shares
        rows: list[tuple[int, Floats]] = []
        for offset, share in (*((0, share) for share in self.shares.values()), (units, 1.0)):
            for name in self._compared:
                column = np.zeros(units + len(self.names))
                column[offset + self.unit_names.index(name)] = share
                column[offset] = share * shares.get(name, 0.0)
                rows.append((len(RISK_RATIOS if name in RARE else SHARPNESS), column))
        for name in self.names[units:]:
            column = np.zeros(units + len(self.names))
            column[units + self.names.index(name)] = 1.0
            rows.append((len(SHIFTS if name == SAMPLE_RATIO else RISK_RATIOS), column))
        return np.concatenate([np.tile(column / count, (count, 1)) for count, column in rows])

    def initial_state(self, *shape: int) -> ProcessState:
        """Before the first start, in rollouts of this shape."""
        promoting = len(self.rules.promotion_metrics)
        return ProcessState(
            block=0,
            capital=np.full((*shape, len(self._mixtures)), FIRST_CAPITAL),
            peaks=np.ones((*shape, self._mixtures.shape[1])),
            wealth=np.ones((*shape, promoting * len(SHARPNESS))),
            unit_wealth=np.ones((*shape, len(self.shares) * promoting * len(SHARPNESS))),
            strata={},
            low=np.full((*shape, len(self.results)), np.inf),
            high=np.full((*shape, len(self.results)), -np.inf),
            run=(Run(),) * int(np.prod(shape, dtype=np.intp)),
            unit_run=(Run(),) * int(np.prod(shape, dtype=np.intp)),
            spent=np.ones(shape),
            unit_spent=np.ones(shape),
        )

    def products(self, cohort: Cohort) -> Products:
        """Of a cohort, pending harms at their bounds."""
        return Products.of_running(self._running(cohort))

    def _running(self, cohort: Cohort) -> Floats:
        alone = self._factors(cohort, rollback_gain)
        singly = [*alone, ratio_factors(cohort.canary, cohort.weight)]
        if self.rules.kept_small:
            far = rollback_gain(cohort, FAILURE, None, self.rules.far_margin)
            singly.append(thinning_factors(cohort.weight, far, self.rules.far_margin))
        if len(self.shares) == 1 and cohort.opens.all():
            running = running_products(np.concatenate(singly, axis=-1))
            return np.concatenate([running[..., : sum(part.shape[-1] for part in alone)], running], axis=-1)
        parts = list[Floats]()
        for k in self.shares:
            of_units = alone if k == 1 else self._factors(cohort, mean_rollback_gain)
            parts += [np.where(cohort.opens[..., None], factors, 1.0) for factors in of_units]
        return running_products(np.concatenate([*parts, *singly], axis=-1))

    def _factors(self, cohort: Cohort, gain: Callable[[Cohort, str, str | None, float], Floats]) -> list[Floats]:
        """The rollback factors of every compared harm, [..., n, stakes] each."""
        parts = list[Floats]()
        for name in self._compared:
            margin = 0.0 if name == SAFETY else self.rules.tested_margin(name)
            if name in RARE:
                parts.append(thinning_factors(cohort.weight, gain(cohort, name, None, margin), margin))
            else:
                gained = gain(cohort, name, name, margin)
                parts.append(rollback_factors(cohort.weight, cohort.centres[name], gained, margin))
        return parts

    def close_block(self, state: ProcessState, cohort: Cohort, products: Products) -> ProcessState:
        """The state after a full block in which nothing is pending."""
        values = prefix_values(products.running, state.capital, self._mixtures, state.block)
        spent, runs = self._runs(state.run, [cohort])
        unit_spent, unit_runs = self._runs(state.unit_run, [cohort], of_units=True)
        return replace(
            self._up_to_watermark(state, cohort),
            block=state.block + 1,
            capital=grown_capital(state.capital, products.running[..., -1, :], state.block),
            peaks=np.maximum(state.peaks, values.max(axis=-2)),
            unit_wealth=self._unit_wealth(state.unit_wealth, [cohort]),
            run=runs,
            unit_run=unit_runs,
            spent=np.minimum(state.spent, spent),
            unit_spent=np.minimum(state.unit_spent, unit_spent),
        )

    def evaluate(self, state: ProcessState, cohorts: Sequence[Cohort], products: Sequence[Products]) -> Evaluation:
        """The closed blocks and the open ones behind them, as they are now."""
        known, alone, units = state, self._is_alone(state, cohorts), len(self.unit_names)
        for cohort in cohorts:
            known = self._up_to_watermark(known, cohort)
            if not cohort.settled.all(axis=-1).any():
                break
        spent, unit_wealth, unit_spent = state.spent, state.unit_wealth, state.unit_spent
        if cohorts:
            spent = np.minimum(spent, self._runs(state.run, cohorts)[0])
        if alone:
            unit_wealth, unit_spent = known.wealth, spent
        elif cohorts:
            unit_wealth = self._unit_wealth(unit_wealth, cohorts)
            unit_spent = np.minimum(unit_spent, self._runs(state.unit_run, cohorts, of_units=True)[0])
        largest = self._largest(state, products, alone=alone)
        peaks = np.maximum(state.peaks, largest)
        known = replace(known, peaks=peaks, unit_wealth=unit_wealth, spent=spent, unit_spent=unit_spent)
        return Evaluation(self, known, largest[..., units])

    def _is_alone(self, state: ProcessState, cohorts: Sequence[Cohort]) -> bool:
        """Whether every trajectory was its own subject so far: then the tests by subject are those by trajectory."""
        if len(self.shares) > 1 or not cohorts or not all(cohort.opens.all() for cohort in cohorts):
            return False
        of_units, singly = state.capital[..., : self._unit_stakes], state.capital[..., self._unit_stakes :]
        return (
            np.array_equal(of_units, singly[..., : self._unit_stakes])
            and np.array_equal(state.wealth, state.unit_wealth)
            and np.array_equal(state.spent, state.unit_spent)
            and state.run == state.unit_run
        )

    def _largest(self, state: ProcessState, products: Sequence[Products], *, alone: bool) -> Floats:
        """The largest e-value of a prefix that reaches into the open blocks, per test."""
        units, stakes = len(self.unit_names), self._unit_stakes if alone else 0
        mixtures = self._mixtures[stakes:, units if alone else 0 :]
        largest = largest_prefix(state.capital[..., stakes:], state.block, mixtures, products, stakes)
        return np.concatenate([largest[..., :units], largest], axis=-1) if alone else largest

    def _unit_wealth(self, wealth: Floats, cohorts: Sequence[Cohort]) -> Floats:
        """Promotion's wealth by subject, up to the first unit that is not settled."""
        width, parts = wealth.shape[-1] // len(self.shares), list[Floats]()
        for number, (k, share) in enumerate(self.shares.items()):
            part = wealth[..., number * width : (number + 1) * width]
            for cohort in cohorts:
                settled = units_settled(cohort, k)
                counts = (before_watermark(settled) & cohort.opens)[..., None]
                factors = [np.where(counts, values, 1.0) for values in self._promotion_factors(cohort, k)]
                part = capped_wealth(part, np.concatenate(factors, axis=-1), self.rules.ceiling / share)
                if not settled.all(axis=-1).any():
                    break
            parts.append(part)
        return np.concatenate(parts, axis=-1)

    def _promotion_factors(self, cohort: Cohort, k: int) -> list[Floats]:
        gain = promotion_gain if k == 1 else mean_promotion_gain
        return [
            promotion_factors(
                cohort.weight,
                centre_for_promotion(cohort, name),
                gain(cohort, name, self.rules.tested_margin(name)),
                self.rules.tested_margin(name),
            )
            for name in self.rules.promotion_metrics
        ]

    def _up_to_watermark(self, state: ProcessState, cohort: Cohort) -> ProcessState:
        """Promotion's wealth, strata and extremes with the trajectories of a cohort that are before the watermark."""
        rules, before = self.rules, before_watermark(cohort.settled)
        claimed = {name: for_promotion(cohort, name) for name in self.shown}
        harms = claimed | {KNOWN_REWARD: for_rollback(cohort, REWARD), LATENCY: measured_latency(cohort)}
        if cohort.costs is not None:
            spent = np.where(cohort.costs.known, np.minimum(cohort.costs.spent, 1.0), 0.0)
            harms |= {PRICED: cohort.costs.known.astype(np.float64), SPENT: spent, SQUARED: spent**2}
        parts = [np.where(before[..., None], values, 1.0) for values in self._promotion_factors(cohort, 1)]
        chosen = np.stack([claimed[name] for name in self.results], axis=-1)
        return replace(
            state,
            wealth=capped_wealth(state.wealth, np.concatenate(parts, axis=-1), rules.ceiling),
            strata=_with_cohort(state.strata, cohort, harms, before),
            low=np.minimum(state.low, np.where(before[..., None], chosen, np.inf).min(axis=-2)),
            high=np.maximum(state.high, np.where(before[..., None], chosen, -np.inf).max(axis=-2)),
        )

    def _runs(
        self, before: tuple[Run, ...], cohorts: Sequence[Cohort], *, of_units: bool = False
    ) -> tuple[Floats, tuple[Run, ...]]:
        """The share that failure streaks use up in each rollout, and the run that is under way after the cohorts.

        `of_units`: among trajectories that opened a unit.
        """
        canary = np.concatenate([cohort.canary for cohort in cohorts], axis=-1)
        outcome = np.concatenate([cohort.outcome for cohort in cohorts], axis=-1)
        shape, n = canary.shape[:-1], canary.shape[-1]
        broken_off = np.concatenate([cohort.broken_off for cohort in cohorts], axis=-1)
        counts = np.concatenate([cohort.opens for cohort in cohorts], axis=-1) | (not of_units)
        failed = (outcome == FAILED) | ((outcome == MOVED) & broken_off)
        spared = ((outcome == SUCCESS) | (outcome == MISSING)) & ~broken_off
        rollouts = zip(before, *(rows.reshape(-1, n) for rows in (counts, canary, failed, spared)), strict=True)
        results = [
            failure_streak.runs(run, *(row[rows] for row in of_rollout), margin=self.rules.margin)
            for run, rows, *of_rollout in rollouts
        ]
        return np.array([spent for spent, _ in results]).reshape(shape), tuple(run for _, run in results)


@dataclass(frozen=True)
class Evaluation:
    """The results of all tests at one moment, in one rollout or in many."""

    tests: SequentialTests
    known: ProcessState
    """Closed blocks and what is before the watermarks; `peaks` and `spent` of everything."""
    caution: Floats
    """Largest combined rollback e-value by trajectory of a prefix that reaches into the open window."""

    @cached_property
    def promotion_by_trajectory(self) -> Floats:
        """Present e-values, [..., promotion metrics]."""
        wealth = self.known.wealth
        return wealth.reshape(*wealth.shape[:-1], -1, len(SHARPNESS)).mean(axis=-1, dtype=np.float64)

    @cached_property
    def promotion(self) -> Floats:
        """Present e-values by subject, [..., promotion metrics]: of each k with its share of the error, the larger."""
        wealth, shares = self.known.unit_wealth, np.array([*self.tests.shares.values()])
        by_k = wealth.reshape(*wealth.shape[:-1], len(shares), -1, len(SHARPNESS)).mean(axis=-1, dtype=np.float64)
        return (by_k * shares[:, None]).max(axis=-2)

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
        for metric in self.tests.shown:
            total, size = np.zeros(self.caution.shape), np.zeros(self.caution.shape)
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
        if self.tests.rules.cost_cap_usd is not None:
            spent = self._total([stratum.harm[SPENT] for stratum in self.known.strata.values()])
            priced = self._total([stratum.harm[PRICED] for stratum in self.known.strata.values()])
            shrunk = folded(np.array([False, True]), (spent + Terms().cost) / (priced + 1), COST_MARGIN)
            centres[COST] = (1 - weight) * shrunk[..., 1] + weight * shrunk[..., 0]
        return centres

    def evidence(self, place: tuple[int, ...] = ()) -> Evidence:
        """The evidence of one rollout for its verdict; its place is `()` when there is only one."""
        tests, state = self.tests, self.known
        metrics = tests.rules.promotion_metrics
        costs = self._costs(place)
        flat = state.low[place] >= state.high[place] - ROUNDING
        positive = flat & (state.high[place] > ROUNDING)
        coverage = dict(zip(("stable", "canary"), self.coverage[place].tolist(), strict=True))
        differences = {name: float(values[place]) for name, values in self.differences.items()}
        known = {name: self._arms(name, place) for name, value in differences.items() if not np.isnan(value)}
        limits = {name: limits_of(shares) for name, shares in known.items()}
        by_share = {name: tuple(share_difference(share) for share in shares) for name, shares in known.items()}
        if (whole := cost_limits_of(costs)) is not None:
            differences[COST], limits[COST] = whole
            by_share[COST] = tuple(filter(None, map(share_cost_difference, costs)))
        peaks, units = state.peaks[place].tolist(), len(tests.unit_names)
        return Evidence(
            rollback=dict(zip(tests.unit_names, peaks[:units], strict=True)),
            suspension=dict(zip(tests.names, peaks[units:], strict=True)),
            caution=float(self.caution[place]),
            promotion=dict(zip(metrics, self.promotion[place].tolist(), strict=True)),
            promotion_by_trajectory=dict(zip(metrics, self.promotion_by_trajectory[place].tolist(), strict=True)),
            differences={name: differences[name] for name in limits},
            coverage={arm: share for arm, share in coverage.items() if not np.isnan(share)},
            counted={name: int(n) for name, n in zip(("stable", "canary"), self.count[place].tolist(), strict=True)},
            constant=tuple(name for name, is_so in zip(tests.results, positive.tolist(), strict=True) if is_so),
            varies=not bool(flat.all()),
            run=float(state.unit_spent[place]),
            run_of_trajectories=float(state.spent[place]),
            limits=limits,
            by_share=by_share,
        )

    def _costs(self, place: tuple[int, ...]) -> list[ShareCosts]:
        """Known costs of both arms under each share of traffic that both have some of, smallest share first."""
        if self.tests.rules.cost_cap_usd is None:
            return []
        names = (PRICED, SPENT, SQUARED)
        each = [
            ShareCosts(weight, *(tuple(stratum.harm[name][place].tolist()) for name in names))
            for weight, stratum in sorted(self.known.strata.items())
        ]
        return [costs for costs in each if all(costs.count)]

    def _arms(self, metric: str, place: tuple[int, ...]) -> list[ShareArms]:
        """Both arms under each share of traffic that both have trajectories of, smallest share first."""
        both = [
            ShareArms(weight, tuple(stratum.count[place].tolist()), tuple(stratum.harm[metric][place].tolist()))
            for weight, stratum in sorted(self.known.strata.items())
        ]
        return [arms for arms in both if all(arms.count)]

    def _total(self, parts: Sequence[Floats]) -> Floats:
        return np.sum(parts, axis=0) if parts else np.zeros((*self.caution.shape, 2))


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of all tests of one rollout when it was last evaluated."""

    rollback: dict[str, float] = {}
    """By subject, largest e-value of any prefix: `combined` and its metrics, `first_call`, `safety`, `complaints`."""
    suspension: dict[str, float] = {}
    """The same by trajectory, with `sample_ratio` and `far_worse`."""
    caution: float = 1.0
    """Largest rollback e-value by trajectory of a recent prefix: the combined one, or that of complaints."""
    promotion: dict[str, float] = {}
    """By subject, e-value at the present watermark, by metric."""
    promotion_by_trajectory: dict[str, float] = {}
    """The same by trajectory."""
    differences: dict[str, float] = {}
    """Canary minus stable before the watermark, stratified by stage; absent while unknown. Of cost relative to stable's
    mean, over the trajectories whose cost is known."""
    coverage: dict[str, float] = {}
    """By arm: share of outcomes before the watermark that are known."""
    counted: dict[str, int] = {}
    """By arm: trajectories before the watermark."""
    constant: tuple[str, ...] = ()
    """Promotion metrics on which every trajectory did the same positive harm: they show nothing."""
    varies: bool = False
    """Whether any promotion metric was not the same throughout."""
    run: float = 1.0
    """Smallest share of false alarms that a run of subjects has used up, whose first canary trajectories fail."""
    run_of_trajectories: float = 1.0
    """The same of trajectories."""
    limits: dict[str, Limits] = {}
    """Of each difference, at every moment at once (`confidence.py`)."""
    by_share: dict[str, tuple[ShareDifference, ...]] = {}
    """The differences by the canary's share of traffic."""

    def proof_of(self, metric: str) -> float:
        """What speaks for a promotion by this metric: the smaller e-value, as both must suffice."""
        return min(self.promotion.get(metric, 1.0), self.promotion_by_trajectory.get(metric, 1.0))


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
