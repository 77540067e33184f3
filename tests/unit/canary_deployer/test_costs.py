"""Cost as a metric: what a trajectory costs, its bounded harm with the margin in it, its cap, what is shown of it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from ratchet.canary_deployer.domain.cohorts import Cohort, Known, cohort_of, for_promotion, for_rollback, rollback_gain
from ratchet.canary_deployer.domain.e_processes import SHARPNESS, Floats
from ratchet.canary_deployer.domain.estimates import forecast, measured_cost
from ratchet.canary_deployer.domain.evidence import Evidence, SequentialTests
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.rollout_statistics import Statistics
from ratchet.canary_deployer.domain.rules import COST, OVER_CAP, Rules
from ratchet.canary_deployer.domain.summary import summary
from ratchet.canary_deployer.domain.trajectories import (
    FAILED,
    ArmCounts,
    Batch,
    Call,
    Compared,
    Event,
    Score,
    Started,
    Terms,
    Trajectory,
    Window,
    call_of,
)
from ratchet.canary_deployer.domain.verdicts import decide, waiting_for
from ratchet.canary_deployer.settings import Settings
from ratchet.core.contract import ModelRollout
from ratchet.core.contract.http.rollouts import CostCap
from ratchet.core.errors import Unavailable
from ratchet.core.rules.confidence import ShareCosts, cost_limits_of
from tests.support.canary_simulation import running_record
from tests.support.canary_world import CanaryWorld, quick_rules, turn_of

COMPARED = Compared("r", 1, 2, frozenset({0.25}))
RULES = quick_rules(horizon_s=100.0)
CAP_USD = 0.5
CALLED = ("t", "canary", 2, 0.25)
ARMS = {"stable": 1, "canary": 2, "mixed": 1}


def start(name: str, arm: str = "canary") -> Started:
    return Started(name, 0.0, arm, ARMS[arm], 0.25, "r", Terms())


def call(name: str, cost_usd: float | None, arm: str = "canary", at: float = 1.0, **changes: object) -> Call:
    plain = Call(name, at, at == 1.0, arm, ARMS[arm], False, 100.0, False, at, at + 0.1, cost_usd=cost_usd)
    return replace(plain, **changes)


def score(name: str, success: bool | None = True, at: float = 10.0) -> Score:
    return Score(name, at, success, 0.5, False)


def folded(*events: Event, as_of: float = 0.0) -> Window:
    window = Window()
    window.fold(Batch(events, as_of), COMPARED, RULES)
    return window


def only(window: Window) -> Trajectory:
    return window.chunks[0].trajectories[0]


def cohort(window: Window) -> Cohort:
    return cohort_of(window.chunks[0], known=Known(CAP_USD))


def test_cost_of_a_trajectory_sums_its_retries() -> None:
    failed = call("t", 0.2, at=2.0, error=True)
    window = folded(start("t"), call("t", 0.1), failed, call("t", 0.3, at=3.0), score("t"), call("t", 9.0, at=20.0))
    assert only(window).cost_usd == pytest.approx(0.6)
    assert (window.canary.priced, window.canary.cost_usd) == (1, pytest.approx(0.6))


def test_cost_of_a_fallback_counts_on_the_arm_that_failed() -> None:
    failed = call("t", 0.0, error=True)
    window = folded(start("t"), failed, call("t", 0.3, "mixed", at=3.0), call("t", 0.2, "mixed", at=4.0))
    assert (only(window).outcome, only(window).spending, only(window).done) == (FAILED, True, False)
    window.fold(Batch([score("t"), call("t", 0.4, "mixed", at=11.0)], 0.0), COMPARED, RULES)
    assert (only(window).cost_usd, only(window).done) == (pytest.approx(0.5), True)


def test_cost_of_a_fallback_settles_at_the_horizon() -> None:
    failed = call("t", 0.0, error=True)
    window = folded(start("t"), failed, call("t", 0.3, "mixed", at=3.0), call("t", 0.2, "mixed", at=101.0), as_of=102.0)
    assert (only(window).cost_usd, only(window).done) == (pytest.approx(0.3), True)


def test_calls_after_the_horizon_are_no_part_of_the_cost() -> None:
    assert only(folded(start("t"), call("t", 0.1), call("t", 0.2, at=101.0), as_of=102.0)).cost_usd == 0.1


def test_failed_call_without_a_price_costs_nothing() -> None:
    failed, cancelled = turn_of(*CALLED, error="engine away"), turn_of(*CALLED, finish_reason="cancelled")
    assert call_of(failed.header_summary, 7.0).cost_usd == 0.0
    assert call_of(cancelled.header_summary, 7.0).cost_usd is None
    assert call_of(turn_of(*CALLED, cost_usd=0.25).header_summary, 7.0).cost_usd == 0.25


def harms(window: Window, metric: str) -> tuple[list[float], list[float]]:
    """For rollback and for promotion."""
    known = cohort(window)
    return for_rollback(known, metric).tolist(), for_promotion(known, metric).tolist()


def test_cost_that_is_pending_or_unknown_is_worst_for_the_claim() -> None:
    arms = ("canary", "stable")
    starts = [start(f"{kind} {arm}", arm) for kind in ("pending", "unknown", "known") for arm in arms]
    calls = [call(f"{kind} {arm}", 0.1, arm) for kind in ("pending", "unknown", "known") for arm in arms]
    calls += [call(f"unknown {arm}", None, arm, at=2.0) for arm in arms]
    scores = [score(f"{kind} {arm}") for kind in ("unknown", "known") for arm in arms]
    rollback, promotion = harms(folded(*starts, *calls, *scores), COST)
    spent_c, spent_s = 0.2 / 1.25, 0.2
    assert rollback == pytest.approx([spent_c, 1.0, spent_c, 1.0, spent_c, spent_s])
    assert promotion == pytest.approx([0.8, spent_s, 0.8, spent_s, spent_c, spent_s])


def test_cost_above_the_cap_is_a_harm_of_its_own() -> None:
    starts = [start("dear"), start("cheap"), start("pending", "stable")]
    window = folded(*starts, call("dear", 0.51), call("cheap", 0.49), score("cheap"))
    assert harms(window, OVER_CAP)[0] == [1.0, 0.0, 1.0]


def test_cost_of_a_quarter_more_is_no_difference_of_folded_harms() -> None:
    """Over both arms that a trajectory may draw, Z has the mean x / 1.25 - x'."""
    rng = np.random.default_rng(3)
    for dear, cheap in rng.uniform(0, CAP_USD, (20, 2)).tolist():
        events = [start("c"), start("s", "stable"), call("c", dear), call("s", cheap, "stable")]
        both = cohort(folded(*events, score("c"), score("s")))
        gain = rollback_gain(both, COST, COST, 0.0)
        mean = float(0.25 * gain[0] + 0.75 * gain[1])
        assert mean == pytest.approx((dear / 1.25 - cheap) / CAP_USD)


def test_factors_at_the_margin_have_the_mean_1() -> None:
    """Of a quarter more on the canary, over both arms; above 1 for more."""
    tests = SequentialTests(replace(RULES, metrics=()).with_cost(CAP_USD))

    def mean(dear: float, cheap: float) -> Floats:
        arms = [("canary", dear), ("stable", cheap)]
        factors = [
            tests.products(cohort(folded(start("t", arm), call("t", usd, arm), score("t")))).running[
                0, : len(SHARPNESS)
            ]
            for arm, usd in arms
        ]
        return 0.25 * factors[0] + 0.75 * factors[1]

    assert mean(0.25, 0.2) == pytest.approx(np.ones(len(SHARPNESS)))
    assert (mean(0.26, 0.2) > 1).all()


def test_factors_of_the_dearest_and_the_cheapest_cost_stay_positive() -> None:
    tests = SequentialTests(RULES.with_cost(CAP_USD))
    for own, other in ((1e6, 0.0), (0.0, 1e6)):
        events = [start("c"), start("s", "stable"), call("c", own), call("s", other, "stable"), score("c"), score("s")]
        assert (tests.products(cohort(folded(*events))).running > 0).all()


def test_cap_is_four_times_the_dearest_of_a_hundred() -> None:
    cap = measured_cost([*[0.01] * 980, *[0.05] * 20], RULES)
    assert (cap.cap_usd, cap.trajectories) == (pytest.approx(0.2), 1000)
    assert cap.basis == "4 times the 0.05 USD that 99% of 1000 trajectories of stable cost at most"


@pytest.mark.parametrize(
    ("costs", "basis"),
    [
        ([0.1] * 99, "99 of 100 priced trajectories of stable are known that began more than 10 minutes before"),
        ([0.0] * 1000, "99% of 1000 trajectories of stable cost nothing"),
        (
            [*[0.01] * 900, *[None] * 100],
            "100 of 1000 trajectories of stable have a call without a price: an equal cost could not be shown",
        ),
    ],
)
def test_cost_is_off_where_history_is_too_short(costs: list[float | None], basis: str) -> None:
    cap = measured_cost(costs, RULES)
    assert (cap.cap_usd, cap.basis) == (None, basis)


def test_cost_takes_a_share_of_the_rollbacks_error() -> None:
    with_cost = RULES.with_cost(CAP_USD)
    assert sum(with_cost.shares.values()) == pytest.approx(1.0)
    assert with_cost.shares["failure"] == pytest.approx(RULES.shares["failure"] * 10 / 12)
    more = measured_cost([0.01] * 1000, RULES).more_evidence
    assert more is not None
    assert (0.025 * with_cost.shares["failure"]) == pytest.approx((0.025 * RULES.shares["failure"]) ** (1 + more))


def test_forecast_takes_the_longer_of_both_proofs() -> None:
    wide = measured_cost([*[0.0001] * 9_000, *[1.0] * 1_000], RULES)
    narrow = measured_cost([0.01] * 1000, RULES)
    without = forecast(1000, 86400.0, RULES)
    assert without is not None
    assert forecast(1000, 86400.0, RULES, cost=narrow) == without
    slower = forecast(1000, 86400.0, RULES, cost=wide)
    assert slower is not None
    assert slower.days > 1.5 * without.days


def test_setting_without_cost_leaves_it_out() -> None:
    rules = Settings(metrics=("failure", "missing", "reward", "latency")).rules()
    assert not rules.compares_cost
    assert Settings().rules().compares_cost
    with pytest.raises(ValueError, match="not cost alone"):
        Settings(metrics=("cost",))


async def started(world: CanaryWorld) -> CostCap:
    await world.with_policies(1, 2)
    cost = (await world.until("running")).cost
    assert cost is not None
    return cost


async def test_cap_is_frozen_when_the_rollout_starts() -> None:
    world = CanaryWorld(quick_rules())
    world.history.costs_usd = [0.01] * 1000
    frozen = await started(world)
    assert frozen.cap_usd == pytest.approx(0.04)
    assert world.bus.published(ModelRollout)[-1].evidence["cost"]["cap_usd"] == frozen.cap_usd
    world.history.costs_usd = [1.0] * 1000
    world.restart()
    await world.play(20, 0.5, 0.5)
    shown = summary(await world.rollout(), world.rules)
    assert shown.cost is not None
    assert shown.cost.cap_usd == frozen.cap_usd
    assert {"cost", "over_cap"} <= shown.e_values["rollback"].keys() & shown.e_values["promotion"].keys()
    assert any(
        line.startswith("promotion e-value of cost") for line in proof_missing(await world.rollout(), world.rules)
    )


def proof_missing(rollout: Rollout, rules: Rules) -> list[str]:
    """What the last stage waits for."""
    return waiting_for(msgspec.structs.replace(rollout, stage=len(rules.stages) - 1), rules)


async def test_without_the_coordinator_cost_is_off_with_the_reason() -> None:
    world = CanaryWorld(quick_rules())
    world.history.fault = Unavailable("the coordinator is away")
    off = await started(world)
    assert off == CostCap(basis="the coordinator is away")
    assert "cost" not in summary(await world.rollout(), world.rules).e_values["rollback"]


async def test_dearer_canary_is_rolled_back_by_its_cost() -> None:
    world = CanaryWorld(quick_rules())
    world.history.costs_usd = [0.01] * 1000
    await started(world)
    rollout = await world.rollout()
    for _ in range(40):
        if not rollout.active:
            break
        await world.play(40, 0.9, 0.9, costs_usd=(0.01, 0.035))
        rollout = await world.rollout()
    assert rollout.state == "rolled_back"
    evidence = rollout.statistics.evidence
    assert max(evidence.rollback, key=evidence.rollback.__getitem__) == COST
    assert rollout.statistics.canary.cost_mean == pytest.approx(0.035)


def test_promotion_names_the_smallest_proof_of_all_metrics() -> None:
    proofs = dict.fromkeys(("failure", "reward", COST, OVER_CAP), 80.0) | {COST: 30.0}
    evidence = Evidence(
        promotion=proofs, promotion_by_trajectory=proofs, varies=True, coverage={"stable": 1.0, "canary": 1.0}
    )
    statistics = Statistics(canary=ArmCounts(trajectories=500), evidence=evidence, subjects=500)
    last = msgspec.structs.replace(
        running_record(),
        stage=len(RULES.stages) - 1,
        stage_age_s=1e6,
        statistics=statistics,
        cost=CostCap(cap_usd=CAP_USD, basis="history"),
    )
    decision = decide(last, RULES)
    assert decision is not None
    assert decision.reason == "not worse than the margin: e-value 30 reached 20"


def costs_at(weight: float, arms: tuple[Floats, Floats]) -> ShareCosts:
    return ShareCosts(
        weight,
        tuple(float(len(costs)) for costs in arms),
        tuple(float(costs.sum()) for costs in arms),
        tuple(float((costs**2).sum()) for costs in arms),
    )


@pytest.mark.parametrize(("weight", "times"), [(0.1, 1.5), (0.5, 0.8)])
def test_all_looks_hold_the_true_relative_cost_in_95_of_100(weight: float, times: float) -> None:
    rng, missed, rollouts = np.random.default_rng(11), 0, 100
    for _ in range(rollouts):
        is_canary = rng.random(3000) < weight
        costs = rng.lognormal(0, 1, 3000) / 41
        truth = times * np.minimum(costs, 1)
        looks = [
            cost_limits_of([costs_at(weight, (costs[:n][~is_canary[:n]].clip(0, 1), truth[:n][is_canary[:n]]))])
            for n in range(100, 3001, 100)
        ]
        known = [look[1] for look in looks if look is not None]
        missed += any(not one.low <= times - 1 <= one.high for one in known)
    assert missed / rollouts <= 0.05


def test_relative_cost_has_no_limits_while_nothing_costs() -> None:
    assert cost_limits_of([costs_at(0.5, (np.zeros(50), np.ones(50)))]) is None
