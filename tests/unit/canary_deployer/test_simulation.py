"""How often the tests err when trajectories take time: 60 or 400 rollouts a scene, through the verdicts.

A scene is red when even the lower end of the exact 95 % interval of its error rate is above 5 %. So `make test`
(60 rollouts in half of the scenes, red from 8) notices an error rate of 20 % in 93 of 100 scenes, `make test-all` (400,
red from 30, in one scene of each error) one of 10 % in 96, and `make simulate` (5,000, red from 282) one of 7 % always.
"""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from _pytest.mark import ParameterSet

from ratchet.canary_deployer.domain.cohorts import Known, cohort_of
from ratchet.canary_deployer.domain.rollout_statistics import ChunkName, LiveStatistics, Statistics
from ratchet.canary_deployer.domain.rules import Stage
from ratchet.canary_deployer.domain.trajectories import (
    Batch,
    Call,
    Chunk,
    Compared,
    Event,
    Opinion,
    Score,
    Started,
    Terms,
)
from tests.support.canary_messages import Disturbed, play_messages
from tests.support.canary_scenes import (
    FALSE_BY_COST,
    FALSE_PROMOTIONS,
    FALSE_ROLLBACKS,
    WORSE_BY_COST,
    Draw,
    breaks,
    by_subject,
    clustered,
    plain,
    priced,
)
from tests.support.canary_simulation import MEASURED, Played, Scene, counted, exact_interval, play
from tests.support.canary_world import quick_rules

ROLLOUTS, MANY = 60, 400
ALLOWED = 0.05
ROLLBACKS_HERE = (
    "equal, 5 times faster",
    "worse by the margin, faster",
    "failures at once on the canary",
    "harder evening, worse by the margin",
    "waves of hard tasks",
    "failures unreported",
    "agents die with the first call",
    "silent reward computer, slower canary",
    "lapsed lease",
    "restarts of the engine",
    "an engine that does not serve the canary",
)
PROMOTIONS_HERE = (
    "worse by the margin, slower",
    "worse by the margin, all stages",
    "only failures unreported",
    "agents die with the canary",
    "better first, then worse",
    "breaks the engine, else better",
)
ROLLBACKS_BY_COST = ("25 % dearer, Pareto", "25 % dearer in a harder evening, retries", "costs of stable unknown")
PROMOTIONS_BY_COST = ("25 % dearer, lognormal, else better", "costs of the canary unknown")
"""The scenes that broke an earlier design, and one of every kind; `make simulate` plays them all."""
PAIR = Compared("r", 1, 2, frozenset({0.1, 0.25, 0.5, 0.95}))


def scenes(names: tuple[str, ...], often: str) -> list[ParameterSet]:
    """Every scene in few rollouts, and one of them in many; `make test` plays the first half."""
    quick = -(-len(names) // 2)
    return [
        *(pytest.param(name, ROLLOUTS) for name in names[:quick]),
        *(pytest.param(name, ROLLOUTS, marks=pytest.mark.slow) for name in names[quick:]),
        pytest.param(often, MANY, marks=pytest.mark.slow),
    ]


@pytest.mark.parametrize(("name", "rollouts"), scenes(ROLLBACKS_HERE, "equal, 5 times faster"))
def test_simulation_rarely_rolls_back_a_canary_within_its_margins(name: str, rollouts: int) -> None:
    rolled_back = counted(FALSE_ROLLBACKS[name], "rolled_back", rollouts)
    assert exact_interval(rolled_back, rollouts)[0] <= ALLOWED, rolled_back


@pytest.mark.parametrize(("name", "rollouts"), scenes(PROMOTIONS_HERE, "worse by the margin, slower"))
def test_simulation_rarely_promotes_a_worse_or_a_silent_canary(name: str, rollouts: int) -> None:
    promoted = counted(FALSE_PROMOTIONS[name], "promoted", rollouts)
    assert exact_interval(promoted, rollouts)[0] <= ALLOWED, promoted


@pytest.mark.parametrize(("name", "rollouts"), scenes(ROLLBACKS_BY_COST, "25 % dearer, Pareto"))
def test_simulation_rarely_rolls_back_a_canary_within_the_margin_of_cost(name: str, rollouts: int) -> None:
    rolled_back = counted(FALSE_BY_COST[name], "rolled_back", rollouts)
    assert exact_interval(rolled_back, rollouts)[0] <= ALLOWED, rolled_back


@pytest.mark.parametrize(("name", "rollouts"), scenes(PROMOTIONS_BY_COST, "25 % dearer, lognormal, else better"))
def test_simulation_rarely_promotes_a_canary_that_is_dearer(name: str, rollouts: int) -> None:
    promoted = counted(WORSE_BY_COST[name], "promoted", rollouts)
    assert exact_interval(promoted, rollouts)[0] <= ALLOWED, promoted


@pytest.mark.parametrize(("size", "active", "least"), [(200, 1, 15), (50, 5, 2)])
def test_simulation_only_suspends_a_canary_that_is_equal_by_subject(size: int, active: int, least: int) -> None:
    """By trajectory these rollouts would end wrongly, most of those with one session at a time."""
    ends = play(by_subject(clustered(size, active, spread=0.3), seconds=2400.0), rollouts=30, seed=18)
    assert exact_interval(ends.rolled_back, 30)[0] <= ALLOWED, ends.rolled_back
    assert ends.suspended >= least


@pytest.mark.parametrize(("size", "active"), [(200, 1), (50, 5)])
def test_simulation_promotes_no_canary_that_is_worse_by_subject(size: int, active: int) -> None:
    scene = by_subject(clustered(size, active, effect=0.05, spread=0.3), seconds=2400.0)
    promoted = play(scene, rollouts=30, seed=19).promoted
    assert exact_interval(promoted, 30)[0] <= ALLOWED, promoted


def test_canary_that_fails_every_session_is_rolled_back_by_a_few() -> None:
    fails = clustered(50, 5, failure=0.05, effect=0.95)
    ends = play(by_subject(fails, weight=0.1, seconds=3000.0, look_s=100.0), rollouts=20, seed=20)
    assert (ends.suspended, ends.rolled_back, ends.promoted) == (20, 20, 0)


def test_simulation_rolls_back_no_equal_canary_for_repeats_and_restarts() -> None:
    scene = Disturbed((0.3, 0.3), (150, 30), seconds=300.0, horizon_s=200.0)
    ends = play_messages(scene, rollouts=ROLLOUTS, seed=15)
    assert exact_interval(ends.rolled_back, ROLLOUTS)[0] <= ALLOWED, ends.rolled_back


def test_under_the_same_disturbances_a_canary_that_fails_is_rolled_back() -> None:
    ends = play_messages(Disturbed((0.3, 1.0), (60, 60), seconds=600.0), rollouts=10, seed=16)
    assert ends.rolled_back == 10


def test_nothing_reported_promotes_nothing() -> None:
    assert play(FALSE_PROMOTIONS["nothing reported"], rollouts=60, seed=13).promoted == 0
    assert play(FALSE_PROMOTIONS["every trajectory fails"], rollouts=60, seed=13).promoted == 0


def test_canary_that_fails_every_trajectory_is_rolled_back_in_minutes() -> None:
    scene = Scene(plain(0.3, 1.0, 60, 60), seconds=1200, look_s=30, stages=(Stage(0.1, 9e9, 20),))
    ends = play(scene, rollouts=40, seed=14)
    assert ends.rolled_back == 40
    assert np.median(ends.rolled_back_s) <= 900


def test_policy_that_breaks_the_engine_is_rolled_back_with_good_answers() -> None:
    scene = Scene(breaks((0.02, 0.4), failure=(0.1, 0.1)), seconds=1200, look_s=60, stages=(Stage(0.5, 9e9, 20),))
    ends = play(scene, rollouts=40, seed=17)
    assert (ends.rolled_back, ends.promoted) == (40, 0)


def test_stable_that_answers_few_calls_is_not_fast() -> None:
    """A call that fails at once has no latency: it makes the canary that answers no slower than stable."""
    rules, events = quick_rules(), list[Event]()
    for number in range(400):
        name, at, canary = f"t{number}", float(number), number % 2 == 1
        arm, version, answers = ("canary", 2, True) if canary else ("stable", 1, number % 20 == 0)
        latency_ms = 800.0 if answers else None
        started = Started(name, at, arm, version, 0.5, "r", Terms(0.5, 0.5, 0.5, 0.5, 800.0))
        call = Call(name, at, True, arm, version, not answers, latency_ms, False, at, at + 0.5)
        events += started, call, Score(name, at, answers, float(answers), False)
    live = LiveStatistics(Statistics(), [], rules)
    live.fold(Batch(events, 1e9), PAIR, rules)
    evidence = live.record(0.5).evidence
    assert evidence.promotion["failure"] >= rules.promotion_threshold
    assert evidence.differences["latency"] == pytest.approx(0.0)


@pytest.mark.parametrize(("hits", "runs", "low", "high"), [(0, 400, 0, 0.00918), (20, 400, 0.0308, 0.0762)])
def test_the_interval_is_clopper_and_pearsons(hits: int, runs: int, low: float, high: float) -> None:
    assert exact_interval(hits, runs) == pytest.approx((low, high), abs=1e-4)


def history(seed: int, count: int, subjects: int = 0) -> list[Batch]:
    """A random history: calls that fail, fall back, hang or repeat, outcomes late, twice or never, a lapsed lease.

    `subjects`: so many are active at a time, a tenth of the starts without a name.
    """
    draw, prices = random.Random(seed), random.Random(seed + 1)
    timed: list[tuple[float, int, Event]] = []
    for number in range(count):
        name, at, canary = f"t{number}", float(number), draw.random() < 0.4
        arm, version = ("canary", 2) if canary else ("stable", 1)
        terms = Terms(round(draw.random(), 1), 0.4, 0.3, 0.5, draw.choice([None, 800.0]))
        weight, subject = draw.choice([0.25, 0.5]), None
        if subjects and draw.random() < 0.9:
            weight, subject = 0.25 if number < count / 2 else 0.5, f"{number // 60 + draw.randrange(subjects):016x}"
        timed.append((at, 0, Started(name, at, arm, version, weight, "r", terms, subject)))
        when = at + draw.expovariate(0.2)
        for index in range(draw.randrange(4)):
            error, hung = draw.random() < 0.1, draw.random() < 0.05
            ms = None if error or hung else draw.uniform(100, 3000)
            cost_usd = None if prices.random() < 0.05 else prices.lognormvariate(0, 1)
            made = Call(name, when, index == 0, arm, version, error, ms, hung, when, when + 0.1, cost_usd=cost_usd)
            timed.append((when, 1, made))
            if draw.random() < 0.1:
                arm, version = "mixed", 1
            when += draw.expovariate(0.2)
        for _ in range(draw.randrange(3)):
            success = draw.choice([True, False, None])
            timed.append((when, 2, Score(name, when, success, draw.random(), draw.random() < 0.02)))
            when += draw.expovariate(0.1)
        for _ in range(draw.randrange(3)):
            given = at + draw.expovariate(0.02)
            timed.append((given, 3, Opinion(name, given, bad=draw.random() < (0.6 if canary else 0.3))))
    timed.sort(key=lambda one: one[:2])
    batches: list[Batch] = []
    while timed:
        size = draw.randrange(1, 60)
        part, timed = timed[:size], timed[size:]
        batches.append(Batch([event for _, _, event in sorted(part, key=lambda one: one[1])], part[-1][0]))
    return [*batches, Batch([], 1e9)]


@pytest.mark.parametrize(("seed", "subjects"), [pytest.param(0, 0, marks=pytest.mark.slow), (1, 5)])
def test_restart_at_any_moment_changes_nothing_and_folding_is_exact(seed: int, subjects: int) -> None:
    rules = quick_rules(horizon_s=100.0, mean_share=0.5).with_cost(10.0)
    batches = history(seed, 700, subjects)
    straight, often = LiveStatistics(Statistics(), [], rules), LiveStatistics(Statistics(), [], rules)
    for batch in batches:
        straight.fold(batch, PAIR, rules)
        often.fold(batch, PAIR, rules)
        names = tuple(ChunkName(chunk.number, "x") for chunk in often.window.chunks)
        record = msgspec.json.decode(msgspec.json.encode(often.record(0.5, names)), type=Statistics)
        chunks = msgspec.json.decode(msgspec.json.encode(often.window.chunks), type=list[Chunk])
        assert straight.record(0.5, names) == record
        often = LiveStatistics(record, chunks, rules)
    assert straight.window.closed == 5
    unclosed = LiveStatistics(Statistics(), straight.window.chunks, rules)
    unclosed.window.fold(Batch([], 1e9), PAIR, rules)
    assert unclosed.record(0.5).evidence.rollback == pytest.approx(straight.record(0.5).evidence.rollback, rel=1e-9)
    assert unclosed.record(0.5).evidence.promotion == pytest.approx(straight.record(0.5).evidence.promotion, rel=1e-9)


@pytest.mark.parametrize("subjects", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_rollback_evidence_is_never_larger_than_once_all_is_known(subjects: int) -> None:
    """Pending harms, and trajectories that may still start, stand at their bounds: the tests need not wait."""
    rules = quick_rules(horizon_s=100.0, mean_share=0.5).with_cost(10.0)
    for seed in range(3):
        live, seen = LiveStatistics(Statistics(), [], rules), list[dict[str, float]]()
        for batch in history(seed, 400, subjects):
            live.fold(batch, PAIR, rules)
            shown = live.record(0.5).evidence
            seen.append({f"{name} by subject": value for name, value in shown.rollback.items()} | shown.suspension)
        for test, last in seen[-1].items():
            assert all(values[test] <= last + 1e-9 for values in seen), test


@pytest.mark.parametrize(
    "draw",
    [
        plain(0.3, 0.4, 60, 20, reported=(0.8, 0.9, 0.7, 1.0), first_failure=(0.1, 0.2)),
        breaks((0.3, 0.4), seconds=(9, 9)),
        priced(plain(0.3, 0.4, 60, 20, reported=(0.8, 0.9, 0.7, 1.0)), "Pareto", 2.0, unknown=(0.1, 0.2)),
    ],
    ids=["failures", "faults of the engine", "costs"],
)
def test_the_fold_of_messages_makes_the_cohorts_that_the_simulation_plays(draw: Draw) -> None:
    """The same lives, once as messages through the fold and once as arrays."""
    scene = Scene(draw, seconds=500, horizon_s=90, priced=True)
    for now in (100.0, 300.0, 700.0):
        played = Played.until(scene, now)
        rules = scene.made_rules()
        live = LiveStatistics(Statistics(), [], rules)
        live.fold(Batch(played.events, now), PAIR, rules)
        folded = cohort_of(live.window.chunks[0], known=Known(1.0, silent=now - rules.horizon_s))
        arrays = played.cohort(len(folded.canary))
        for name in MEASURED:
            np.testing.assert_allclose(getattr(folded, name), getattr(arrays, name)[0], rtol=1e-9, err_msg=name)
        if arrays.costs is not None:
            assert folded.costs is not None
            np.testing.assert_array_equal(folded.costs.known, arrays.costs.known[0])
            np.testing.assert_allclose(folded.costs.spent, arrays.costs.spent[0], rtol=1e-9)
