"""Scenes for `play`: a canary must not be rolled back, must not be promoted, or must be caught.

A canary may be rolled back falsely only where no metric is worse than its margin, given everything that started before.
Failure rates are those of the worlds' names; the margin is .05 (latency .1), as in the product's settings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ratchet.canary_deployer.domain.e_processes import Flags, Floats
from ratchet.canary_deployer.domain.rules import Stage
from ratchet.canary_deployer.domain.subjects import MEAN_SHARE
from tests.support.canary_simulation import NEVER, LifeCosts, Lives, Scene, lives

Draw = Callable[[np.random.Generator, int, Floats], Lives]
SOAK: dict[str, object] = {"soak_s": 1800.0}
HALF = (Stage(0.5, 300, 20),)
"""One stage, half of the trajectories: promotion is soonest there."""


LONGEST_S = 590.0
"""Durations are cut here, below the horizon: else an arm that is merely slower misses outcomes, which is a harm."""


def exponential(rng: np.random.Generator, mean_s: float, shape: tuple[int, int]) -> Floats:
    """Durations."""
    return np.minimum(rng.exponential(mean_s, shape), LONGEST_S)


def plain(stable: float, canary: float, stable_s: float = 120, canary_s: float = 120, **changes: object) -> Draw:
    """Constant failure rates, exponential durations."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        seconds = exponential(rng, stable_s, shape), exponential(rng, canary_s, shape)
        return lives(rng, (stable, canary), seconds, shape=shape, **changes)  # pyright: ignore[reportArgumentType]

    return draw


def by_outcome(stable_s: tuple[float, float], canary_s: tuple[float, float], failure: float = 0.3) -> Draw:
    """Durations of successes and of failures differ, and differ by arm."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        one = lives(rng, (failure, failure), (np.ones(shape), np.ones(shape)), shape=shape)
        means = np.where(one.failed, [stable_s[1], canary_s[1]], [stable_s[0], canary_s[0]])
        return Lives(**{**_fields(one), "known_s": np.minimum(rng.exponential(means), LONGEST_S)})

    return draw


def heavy(kind: str) -> Draw:
    """Durations with heavy tails; the canary's median is a third of stable's."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        tail = rng.lognormal(0, 1.5, (*shape, 2)) if kind == "lognormal" else rng.pareto(1.1, (*shape, 2))
        return lives(
            rng,
            (0.3, 0.3),
            (np.minimum(90 * tail[..., 0], LONGEST_S), np.minimum(30 * tail[..., 1], LONGEST_S)),
            shape=shape,
        )

    return draw


def drift(low: float, high: float, extra: float = 0.0, stable_s: float = 300, canary_s: float = 60) -> Draw:
    """The world gets harder and easier again, for both arms alike; the canary is worse by `extra`."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        rate = np.broadcast_to(low + (high - low) * np.sin(np.pi * start_s / start_s[-1]) ** 2, shape)
        seconds = exponential(rng, stable_s, shape), exponential(rng, canary_s, shape)
        return lives(rng, (rate, rate + extra), seconds, shape=shape)

    return draw


def outage(begins_s: float, lasts_s: float) -> Draw:
    """For a while every call of both arms fails: stable's trajectories take longer to give up."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        one = lives(rng, (0.1, 0.1), (exponential(rng, 200, shape), exponential(rng, 60, shape)), shape=shape)
        out = (start_s >= begins_s) & (start_s < begins_s + lasts_s)
        failed, first = one.failed | out[:, None], one.first_failed | out[:, None]
        known = np.where(out[:, None], np.array([60.0, 5.0]), one.known_s)
        return Lives(**{**_fields(one), "failed": failed, "first_failed": first, "known_s": known})

    return draw


def held_up(begins_s: float, lasts_s: float, seconds: tuple[float, float]) -> Draw:
    """Reports do not reach the broker for a while: what ends meanwhile is reported after it."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        took = exponential(rng, seconds[0], shape), exponential(rng, seconds[1], shape)
        one = lives(rng, (0.3, 0.3), took, shape=shape)
        due, back = start_s[:, None] + one.known_s, begins_s + lasts_s
        late = (due > begins_s) & (due < back)
        return Lives(**{**_fields(one), "known_s": np.where(late, back - start_s[:, None], one.known_s)})

    return draw


def lapse(begins_s: float, lasts_s: float) -> Draw:
    """The lease lapses: what the canary has in flight goes to stable; long trajectories are likelier moved."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        one = lives(rng, (0.3, 0.3), (exponential(rng, 300, shape), exponential(rng, 100, shape)), shape=shape)
        meets = (start_s[:, None] < begins_s + lasts_s) & (start_s[:, None] + one.known_s > begins_s)
        return Lives(**{**_fields(one), "moved": meets})

    return draw


def restarts(*times_s: float, failure: tuple[float, float], seconds: tuple[float, float]) -> Draw:
    """The engine restarts: half of the trajectories that are under way have a call open, of either arm alike."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        one = lives(
            rng, failure, (exponential(rng, seconds[0], shape), exponential(rng, seconds[1], shape)), shape=shape
        )
        for at in times_s:
            into = np.broadcast_to(at - start_s[:, None], one.known_s.shape)
            open_call = (into > 0) & (into < one.known_s) & (rng.random(into.shape) < 0.5)
            one = broken(one, open_call, into)
        return one

    return draw


def breaks(share: tuple[float, float], **worlds: tuple[float, float]) -> Draw:
    """The engine breaks over a call of so many trajectories, of stable and of the canary, at any moment."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        failure, seconds = worlds.get("failure", (0.3, 0.3)), worlds.get("seconds", (120.0, 120.0))
        shape = (runs, len(start_s))
        took = exponential(rng, seconds[0], shape), exponential(rng, seconds[1], shape)
        one = lives(rng, failure, took, shape=shape)
        return broken(one, rng.random((*shape, 2)) < share, one.known_s * rng.random((*shape, 2)))

    return draw


def unserved(failure: float = 0.3) -> Draw:
    """No replica serves the canary: stable answers for it from the first call on."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        one = lives(rng, (failure, failure), (exponential(rng, 120, shape),) * 2, shape=shape)
        return Lives(**{**_fields(one), "moved": np.ones_like(one.moved)})

    return draw


def clustered(
    size: int,
    active: int,
    *,
    failure: float = 0.3,
    effect: float = 0.0,
    spread: float = 0.0,
    fate: bool = False,
    population: int | None = None,
    giant: float = 0.0,
    row: int = 1,
    leave: float = 0.0,
    seconds: float = 20.0,
) -> Draw:
    """Subjects of `size` trajectories, `active` at a time; the canary fails by `effect` more, +-`spread` by subject.

    `fate`: all trajectories of a subject end alike. `population`: only so many subjects there are, which come back.
    `giant`: one subject, on which the canary fails by `spread` more, makes this share of all starts, and the others'
    effects are the same. `row`: so many subjects after each other have one sign. `leave`: the chance that a subject
    does not come again after a failure, of either arm alike; a new one, whose kind is drawn anew, comes in its place.
    """

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        subject = np.stack([_subjects(rng, len(start_s), size, active) for _ in range(runs)])
        if population is not None:
            subject %= population
        if giant:
            subject = np.where(rng.random(shape) < giant, 0, subject + 1)
        count = int(subject.max()) + 1
        signs = np.repeat(rng.choice([-1.0, 1.0], (runs, -(-count // row))), row, axis=1)[:, :count]
        if giant:
            signs = np.tile((np.arange(count) == 0).astype(np.float64), (runs, 1))
        extra = effect + spread * np.take_along_axis(signs, subject, axis=1)
        luck = rng.random((runs, count) if fate else shape)
        if fate:
            luck = np.take_along_axis(luck, subject, axis=1)
        if leave:
            subject, sign = _with_leavers(rng, subject, luck, (failure, failure + effect, spread), leave)
            extra = effect + spread * sign
        took = exponential(rng, seconds, shape), exponential(rng, seconds, shape)
        one = lives(rng, (failure, failure), took, shape=shape)
        failed = np.stack([luck < failure, luck < failure + extra], axis=-1)
        reward = np.where(failed, 0.0, 0.85)
        return Lives(**{**_fields(one), "failed": failed, "reward": reward, "subject": subject})

    return draw


def _subjects(rng: np.random.Generator, count: int, size: int, active: int) -> NDArray[np.intp]:
    """Whose each trajectory is: `active` subjects at a time, at random, `size` each, numbered by their first start."""
    slot = rng.integers(0, active, count)
    seen = np.zeros(active, dtype=np.intp)
    before = rng.integers(0, size, active) if active > 1 else seen
    names = np.empty(count, dtype=np.intp)
    for place, where in enumerate(slot.tolist()):
        names[place] = where + active * ((seen[where] + before[where]) // size)
        seen[where] += 1
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def _with_leavers(
    rng: np.random.Generator, subject: NDArray[np.intp], luck: Floats, rates: tuple[float, float, float], leave: float
) -> tuple[NDArray[np.intp], Floats]:
    """Who comes in fact, and the sign of each: after a failure a subject leaves, and a new one comes for it.

    `rates`: failures of stable and of the canary, and what the sign adds to or takes from the latter's.
    """
    runs, count = np.arange(subject.shape[0]), int(subject.max()) + 1
    present = np.tile(np.arange(count), (len(runs), 1))
    """Of each subject that was drawn: who comes in its place now."""
    signs = rng.choice([-1.0, 1.0], (len(runs), count + subject.shape[1]))
    who, sign = subject.copy(), np.empty(subject.shape)
    for place in range(subject.shape[1]):
        who[:, place] = present[runs, subject[:, place]]
        sign[:, place] = signs[runs, who[:, place]]
        rate = np.where(rng.random(len(runs)) < 0.5, rates[0], rates[1] + rates[2] * sign[:, place])
        leaves = (luck[:, place] < rate) & (rng.random(len(runs)) < leave)
        present[runs, subject[:, place]] = np.where(leaves, count + place, who[:, place])
    return who, sign


def broken(one: Lives, hit: Flags, at_s: Floats) -> Lives:
    """The engine breaks over these trajectories, so long after their start: over the first call, if that is open."""
    at_s = np.where(hit, np.maximum(at_s, one.first_s), NEVER)
    return Lives(
        **{
            **_fields(one),
            "broke_s": np.minimum(one.broke_s, at_s),
            "first_failed": one.first_failed | (at_s == one.first_s),
        }
    )


def turning(first: float, later: float, stable: float = 0.3, at: float = 0.5) -> Draw:
    """The canary fails at one rate first and at another later."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        rate = np.broadcast_to(np.where(start_s < at * (start_s[-1] + 1), first, later), shape)
        seconds = exponential(rng, 200, shape), exponential(rng, 60, shape)
        return lives(rng, (stable, rate), seconds, shape=shape)

    return draw


def correlated() -> Draw:
    """Hard tasks fail, take long, and are long on stable and quick on the canary; difficulty comes in waves."""

    def draw(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        shape = (runs, len(start_s))
        wave = 0.5 + 0.5 * np.sin(2 * np.pi * start_s / 300 + rng.uniform(0, 6.3, (runs, 1)))
        hard = rng.random(shape) < 0.1 + 0.6 * wave
        one = lives(rng, (np.where(hard, 0.7, 0.05), np.where(hard, 0.7, 0.05)), (np.ones(shape),) * 2, shape=shape)
        seconds = np.stack([np.where(hard, 500, 60), np.where(hard, 20, 200)], axis=-1) * rng.exponential(
            1, (*shape, 2)
        )
        seconds = np.minimum(seconds, LONGEST_S)
        both = np.repeat(one.failed[..., :1], 2, axis=-1)
        return Lives(**{**_fields(one), "failed": both, "known_s": seconds, "reward": np.where(both, 0.0, 0.85)})

    return draw


COST_TAILS: dict[str, Callable[[NDArray[np.float64]], Floats]] = {
    "exponential": lambda p: -np.log1p(-p),
    "lognormal": lambda p: np.exp(np.sqrt(2) * _inverse_erf(2 * p - 1)),
    "Pareto": lambda p: (1 - p) ** (-1 / 1.5),
    "narrow": lambda p: 0.9 + 0.2 * p,
}
"""Quantiles of costs: of a mean that 1 of 100 trajectories exceeds by 4 times, by 6, by 7, and by nothing."""


def _inverse_erf(values: Floats) -> Floats:
    """To .002 (Winitzki 2008): a cost of the simulation need not be more exactly lognormal."""
    log, a = np.log1p(-(values**2)), 0.147
    first = 2 / (np.pi * a) + log / 2
    return np.sign(values) * np.sqrt(np.sqrt(first**2 - log / a) - first)


def cost_factor(tail: str, times: float) -> float:
    """By what the canary's costs are multiplied so that, cut at the cap, their mean is so many times stable's."""
    costs = _in_caps(tail, (np.arange(200_000) + 0.5) / 200_000)
    goal, low, high = times * np.minimum(costs, 1).mean(), 0.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * costs, 1).mean() < goal else (low, middle)
    return high


def _in_caps(tail: str, p: Floats) -> Floats:
    """Costs in units of four times their .99 quantile."""
    quantiles = COST_TAILS[tail]
    return quantiles(p) / (4 * quantiles(np.array([0.99])))


def priced(
    draw: Draw,
    tail: str,
    times: float = 1.0,
    *,
    spread: float = 0.0,
    later: float | None = None,
    unknown: tuple[float, float] = (0.0, 0.0),
    runs_away: float = 0.0,
    hard: float = 1.0,
) -> Draw:
    """The same lives with costs; the canary's are `times` stable's, on average and cut at the cap.

    `spread`: half of the subjects cost so much more of it on the canary, half so much less. `later`: from the middle
    on. `unknown`: share of trajectories with a call without a price, of stable and canary. `runs_away`: the canary
    costs ten times the cap in so many trajectories. `hard`: what a failed trajectory costs more, for its retries.
    """

    def drawn(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        one = draw(rng, runs, start_s)
        shape = one.failed.shape
        factor = np.full(shape[:2], cost_factor(tail, times))
        if later is not None:
            factor[:, len(start_s) // 2 :] = cost_factor(tail, later)
        if spread:
            subject = one.subject if one.subject is not None else np.tile(np.arange(shape[1]), (runs, 1))
            signs = rng.choice([-1.0, 1.0], (runs, int(subject.max()) + 1))
            sign = np.take_along_axis(signs, subject, axis=1)
            factor = np.where(
                sign > 0, cost_factor(tail, times * (1 + spread)), cost_factor(tail, times * (1 - spread))
            )
        spent = _in_caps(tail, rng.random(shape)) * np.where(one.failed, hard, 1.0)
        spent[..., 1] *= factor
        spent[..., 1] = np.where(rng.random(shape[:2]) < runs_away, 10.0, spent[..., 1])
        unpriced = rng.random(shape) < np.array(unknown)
        return Lives(**{**_fields(one), "costs": LifeCosts(np.where(unpriced, 0.0, spent), unpriced)})

    return drawn


def complaining(
    draw: Draw,
    rates: tuple[float, float],
    *,
    mean_s: tuple[float, float] = (120.0, 120.0),
    spread: float = 0.0,
    of_failures: bool = False,
) -> Draw:
    """The same lives, of so many of which their users complain, on stable and on the canary, after exponential times.

    `spread`: users of half of the subjects complain so much more often of the canary, relatively, the others less.
    `of_failures`: the rates are those of trajectories that fail; of others no user complains.
    """

    def drawn(rng: np.random.Generator, runs: int, start_s: Floats) -> Lives:
        one = draw(rng, runs, start_s)
        shape = one.failed.shape
        chance = np.broadcast_to(np.array(rates), shape).copy()
        if spread:
            subject = np.tile(np.arange(shape[1]), (runs, 1)) if one.subject is None else one.subject
            signs = rng.choice([-1.0, 1.0], (runs, int(subject.max()) + 1))
            chance[..., 1] *= 1 + spread * np.take_along_axis(signs, subject, axis=1)
        complains = (rng.random(shape) < chance) & (one.failed | (not of_failures))
        after_s = np.minimum(rng.exponential(mean_s, shape), LONGEST_S)
        return Lives(**{**_fields(one), "complains_s": np.where(complains, after_s, NEVER)})

    return drawn


def _fields(one: Lives) -> dict[str, np.ndarray]:
    return {name: getattr(one, name) for name in Lives.__dataclass_fields__}


FALSE_ROLLBACKS: dict[str, Scene] = {
    "equal": Scene(plain(0.3, 0.3)),
    "equal, 5 times faster": Scene(plain(0.3, 0.3, 400, 80)),
    "equal, 5 times slower": Scene(plain(0.3, 0.3, 80, 400)),
    "equal .4, faster, 5 a second": Scene(
        plain(0.4, 0.4, 400, 80), rate=5, seconds=600, look_s=60, stages=(Stage(0.1, 200, 20), Stage(0.5, 9e9, 20))
    ),
    "better and faster": Scene(plain(0.3, 0.25, 400, 80)),
    "worse by the margin": Scene(plain(0.2, 0.25)),
    "worse by the margin, faster": Scene(plain(0.2, 0.25, 400, 60)),
    "failures at once on the canary": Scene(by_outcome((200, 200), (300, 5))),
    "failures at once, successes slow": Scene(by_outcome((400, 5), (400, 5))),
    "successes at once on stable": Scene(by_outcome((5, 400), (200, 200))),
    "lognormal durations": Scene(heavy("lognormal")),
    "Pareto durations": Scene(heavy("pareto")),
    "harder evening": Scene(drift(0.08, 0.5)),
    "harder evening, worse by the margin": Scene(drift(0.08, 0.4, 0.05)),
    "waves of hard tasks": Scene(correlated()),
    "failures unreported": Scene(plain(0.3, 0.3, 300, 60, reported=(1, 0, 1, 0))),
    "successes unreported": Scene(plain(0.3, 0.3, 300, 60, reported=(0, 1, 0, 1))),
    "half unreported": Scene(plain(0.3, 0.3, 300, 60, reported=(0.5, 0.5, 0.5, 0.5))),
    "agents die with the first call": Scene(plain(0.1, 0.1, 300, 60, first_failure=(0.1, 0.1), dies_at_first=True)),
    "outage of both arms": Scene(outage(700, 200)),
    "silent reward computer, faster canary": Scene(plain(0.3, 0.3, 300, 60), silent_s=(600, 1100)),
    "silent reward computer, slower canary": Scene(plain(0.3, 0.3, 60, 300), silent_s=(600, 1100)),
    "silent beyond all patience, slower canary": Scene(plain(0.3, 0.3, 60, 300), silent_s=(300, 1700)),
    "lapsed lease": Scene(lapse(800, 60)),
    "better first, then at the margin": Scene(turning(0.1, 0.35)),
    "at the margin first, then better": Scene(turning(0.35, 0.1)),
    "merely slow calls": Scene(plain(0.3, 0.3, latency_ms=(1000.0, 1400.0))),
    "half at once": Scene(plain(0.3, 0.3, 400, 60), stages=HALF),
    "restarts of the engine": Scene(restarts(500, 900, 1300, failure=(0.1, 0.1), seconds=(200, 200))),
    "restarts, worse by the margin": Scene(restarts(500, 900, 1300, failure=(0.2, 0.25), seconds=(120, 120))),
    "an engine that breaks over one in five": Scene(breaks((0.2, 0.2))),
    "an engine that does not serve the canary": Scene(unserved()),
}
"""No metric is worse than its margin: at most 5 % may be rolled back."""

FALSE_PROMOTIONS: dict[str, Scene] = {
    "worse by the margin": Scene(plain(0.2, 0.25), stages=HALF),
    "worse by the margin, faster": Scene(plain(0.3, 0.35, 400, 60), stages=HALF),
    "worse by the margin, slower": Scene(plain(0.3, 0.35, 60, 400), stages=HALF),
    "worse by the margin, Pareto": Scene(plain(0.3, 0.35, 60, 400), stages=HALF),
    "worse by the margin, all stages": Scene(plain(0.2, 0.25, 300, 60)),
    "only failures unreported": Scene(plain(0.2, 0.25, 300, 60, reported=(1, 0, 1, 0)), stages=HALF),
    "canary's failures unreported": Scene(plain(0.2, 0.25, 300, 60, reported=(1, 1, 1, 0)), stages=HALF),
    "successes unreported": Scene(plain(0.2, 0.25, 300, 60, reported=(0, 1, 0, 1)), stages=HALF),
    "a tenth unreported": Scene(plain(0.2, 0.25, 300, 60, reported=(0.9, 0.9, 0.9, 0.9)), stages=HALF),
    "nothing reported": Scene(plain(0.3, 0.3, 300, 60, reported=(0, 0, 0, 0)), stages=HALF),
    "every trajectory fails": Scene(plain(1.0, 1.0, 300, 60), stages=HALF),
    "agents die with the canary": Scene(
        plain(0.1, 0.1, 300, 60, first_failure=(0.02, 0.1), dies_at_first=True), stages=HALF
    ),
    "harder evening, worse by the margin": Scene(drift(0.08, 0.4, 0.05), stages=HALF),
    "better first, then worse": Scene(
        turning(0.1, 0.45, at=0.36), seconds=5000, look_s=600, stages=(Stage(0.5, 2400, 20),), rules=SOAK
    ),
    "silent reward computer, worse by the margin": Scene(plain(0.2, 0.25, 60, 20), stages=HALF, silent_s=(600, 1100)),
    "restarts, worse by the margin": Scene(
        restarts(500, 900, 1300, failure=(0.2, 0.25), seconds=(120, 120)), stages=HALF
    ),
    "breaks the engine, else better": Scene(breaks((0.0, 0.3), failure=(0.3, 0.2)), stages=HALF),
    "an engine that does not serve the canary": Scene(unserved(), stages=HALF),
}
"""Worse by the margin at every moment, or nothing to see: at most 5 % may be promoted."""

EQUAL = plain(0.3, 0.3, 60, 60)
AT_MARGIN = 1.25


def costing(draw: Draw, tail: str, times: float = 1.0, **changes: object) -> Scene:
    """A scene in which cost is compared; `changes` of `priced`, but for those of the scene."""
    named = {name: changes.pop(name) for name in (*changes,) if name in Scene.__dataclass_fields__}
    return Scene(priced(draw, tail, times, **changes), priced=True, **named)  # pyright: ignore[reportArgumentType] - by name


FALSE_BY_COST: dict[str, Scene] = {
    **{f"equal cost, {tail}": costing(EQUAL, tail) for tail in COST_TAILS},
    **{f"25 % dearer, {tail}": costing(EQUAL, tail, AT_MARGIN) for tail in COST_TAILS},
    "25 % dearer, lognormal, 5 times faster": costing(plain(0.3, 0.3, 400, 80), "lognormal", AT_MARGIN),
    "25 % dearer, lognormal, 5 times slower": costing(plain(0.3, 0.3, 80, 400), "lognormal", AT_MARGIN),
    "25 % dearer, Pareto, half at once": costing(EQUAL, "Pareto", AT_MARGIN, stages=HALF),
    "25 % dearer in a harder evening, retries": costing(drift(0.08, 0.5), "lognormal", AT_MARGIN, hard=3.0),
    "10 % dearer, exponential": costing(EQUAL, "exponential", 1.1),
    "cheaper first, then 25 % dearer": costing(EQUAL, "lognormal", 0.5, later=AT_MARGIN),
    "worse by every margin, lognormal": costing(plain(0.2, 0.25), "lognormal", AT_MARGIN),
    "a tenth of costs unknown, 25 % dearer": costing(EQUAL, "lognormal", AT_MARGIN, unknown=(0.1, 0.1)),
    "costs of stable unknown": costing(EQUAL, "lognormal", AT_MARGIN, unknown=(1.0, 0.0)),
    "costs of the canary unknown": costing(EQUAL, "lognormal", AT_MARGIN, unknown=(0.0, 1.0)),
    "lapsed lease, 25 % dearer": costing(lapse(800, 60), "lognormal", AT_MARGIN),
    "engine breaks over one in five, 25 % dearer": costing(breaks((0.2, 0.2)), "lognormal", AT_MARGIN),
}
"""At most 25 % dearer and else no worse than the margins, at every moment: at most 5 % may be rolled back."""

WORSE_BY_COST: dict[str, Scene] = {
    **{
        f"25 % dearer, {tail}, else better": costing(plain(0.3, 0.2, 60, 60), tail, AT_MARGIN, stages=HALF)
        for tail in COST_TAILS
    },
    "25 % dearer, lognormal, all stages": costing(plain(0.3, 0.2, 60, 60), "lognormal", AT_MARGIN),
    "25 % dearer, lognormal, faster": costing(plain(0.3, 0.2, 400, 60), "lognormal", AT_MARGIN, stages=HALF),
    "25 % dearer in a harder evening, retries": costing(
        drift(0.08, 0.4, -0.05), "lognormal", 1.4, hard=3.0, stages=HALF
    ),
    "60 % dearer, else better": costing(plain(0.3, 0.2, 60, 60), "lognormal", 1.6, stages=HALF),
    "above the cap in one of twenty more": costing(
        plain(0.3, 0.2, 60, 60), "lognormal", 0.05, runs_away=0.05, stages=HALF
    ),
    "worse by the failures' margin, cheaper": costing(plain(0.2, 0.25), "lognormal", 0.5, stages=HALF),
    "a tenth of costs unknown": costing(
        plain(0.3, 0.2, 60, 60), "lognormal", AT_MARGIN, unknown=(0.1, 0.1), stages=HALF
    ),
    "costs of the canary unknown": costing(plain(0.3, 0.2, 60, 60), "lognormal", 0.5, unknown=(0.0, 1.0), stages=HALF),
    "costs of stable unknown": costing(plain(0.3, 0.2, 60, 60), "lognormal", 0.5, unknown=(1.0, 0.0), stages=HALF),
}
"""25 % dearer or worse by another margin at every moment, or nothing to see: at most 5 % may be promoted."""

LIMITS: dict[str, Scene] = {
    "reports held up, slower canary": Scene(held_up(600, 500, seconds=(60, 300))),
}
"""Not promised: a trajectory that is reported after the horizon counts as missing, against the slower arm."""


def by_subject(draw: Draw, *, weight: float = 0.5, seconds: float = 10_000.0, **changes: object) -> Scene:
    """A scene of clustered traffic, one trajectory a second, in one stage."""
    rules: dict[str, object] = {"mean_share": MEAN_SHARE, "metrics": ("failure", "reward")}
    if isinstance(given := changes.pop("rules", None), dict):
        rules |= given
    plain = {"stages": (Stage(weight, 0, 20),), "look_s": 400.0, "horizon_s": 600.0}
    return Scene(draw, seconds=seconds, rules=rules, **(plain | changes))  # pyright: ignore[reportArgumentType] - by name


SHAPES = ((1, 1), (10, 20), (50, 5), (50, 20), (200, 1), (200, 20))
"""Trajectories of a subject, and how many subjects are active at a time."""
STAGED: dict[str, object] = {
    "stages": (Stage(0.1, 600, 20), Stage(0.25, 600, 20), Stage(0.5, 600, 20)),
    "rules": {"soak_s": 1800.0},
}

FALSE_BY_SUBJECT: dict[str, Scene] = {
    **{f"equal on average, +-.3; {n} x {at}": by_subject(clustered(n, at, spread=0.3)) for n, at in SHAPES},
    "equal; 50 x 5": by_subject(clustered(50, 5)),
    "equal, shared fate; 50 x 5": by_subject(clustered(50, 5, fate=True)),
    "equal, shared fate; 200 x 1": by_subject(clustered(200, 1, fate=True)),
    "equal on average, +-.3, outcomes after 200 s; 50 x 5": by_subject(clustered(50, 5, spread=0.3, seconds=200.0)),
    "equal on average, +-.3, in stages, with a soak; 50 x 5": by_subject(clustered(50, 5, spread=0.3), **STAGED),
    "one subject makes 30 % and is +.3, the others 0; 10 x 5": by_subject(clustered(10, 5, spread=0.3, giant=0.3)),
    "50 users who come back ten times, +-.3; 20 x 5": by_subject(clustered(20, 5, spread=0.3, population=50)),
    "20 users for ever, +-.3; 50 x 20": by_subject(clustered(50, 20, spread=0.3, population=20)),
    "users leave after a failure, +-.3; 20 x 5": by_subject(clustered(20, 5, spread=0.3, leave=0.7)),
}
"""On average over subjects no worse than the margin: at most 5 % may be rolled back."""

WORSE_BY_SUBJECT: dict[str, Scene] = {
    **{
        f"worse by the margin on average, +-.3; {n} x {at}": by_subject(clustered(n, at, effect=0.05, spread=0.3))
        for n, at in SHAPES
    },
    "worse by the margin; 50 x 5": by_subject(clustered(50, 5, effect=0.05)),
    "worse by the margin, shared fate; 50 x 5": by_subject(clustered(50, 5, effect=0.05, fate=True)),
    "worse by the margin, shared fate; 200 x 20": by_subject(clustered(200, 20, effect=0.05, fate=True)),
    "worse by the margin, +-.3, in stages, with a soak; 50 x 5": by_subject(
        clustered(50, 5, effect=0.05, spread=0.3), **STAGED
    ),
    "50 users who come back ten times, +.05 +-.3; 20 x 5": by_subject(
        clustered(20, 5, effect=0.05, spread=0.3, population=50)
    ),
    "users leave after a failure, +.05 +-.3, k = 1; 20 x 5": by_subject(
        clustered(20, 5, effect=0.05, spread=0.3, leave=0.7), rules={"mean_share": 0.0}
    ),
}
"""Worse by the margin on average over subjects: at most 5 % may be promoted."""

POWER_BY_SUBJECT: dict[str, Scene] = {
    **{f"better, .3 to .2; {n} x {at}": by_subject(clustered(n, at, effect=-0.1)) for n, at in ((1, 1), *SHAPES[1:4])},
    **{
        f"fails everything, 10 % of traffic; {n} x {at}": by_subject(
            clustered(n, at, failure=0.05, effect=0.95), weight=0.1, seconds=4000.0, look_s=50.0
        )
        for n, at in ((1, 1), (10, 5), (50, 5), (200, 20), (4000, 1))
    },
}
"""How soon a good canary is promoted, and a broken one suspended and rolled back."""

NOT_BY_SUBJECT: dict[str, Scene] = {
    "waves of 50 subjects of one kind, +-.3; 1 x 1": by_subject(clustered(1, 1, spread=0.3, row=50)),
    "a user is 10 subjects in a row, +-.3; 20 x 1": by_subject(clustered(20, 1, spread=0.3, row=10)),
    "users leave after a failure, +.05 +-.3, k = 1 and 20; 20 x 5": by_subject(
        clustered(20, 5, effect=0.05, spread=0.3, leave=0.7)
    ),
}
"""Not promised: what came before says that a new subject is worse, or who leaves weighs less."""


def costing_subjects(
    size: int, active: int, times: float, spread: float, failure: float = 0.3, effect: float = 0.0, **changes: object
) -> Scene:
    """A scene of clustered traffic in which cost is compared."""
    draw = priced(clustered(size, active, failure=failure, effect=effect), "lognormal", times, spread=spread)
    return by_subject(draw, priced=True, **changes)


FALSE_BY_COST |= {
    f"25 % dearer on average, +-60 % by subject; {n} x {at}": costing_subjects(n, at, AT_MARGIN, 0.6)
    for n, at in ((1, 1), (10, 20), (50, 5), (200, 1))
}
WORSE_BY_COST |= {
    f"25 % dearer on average, +-60 % by subject, else better; {n} x {at}": costing_subjects(
        n, at, AT_MARGIN, 0.6, effect=-0.1
    )
    for n, at in ((1, 1), (10, 20), (50, 5), (200, 1))
}

POWER_BY_COST: dict[str, Scene] = {
    **{
        f"better .3 -> .2, {words}, {tail}": by_subject(
            priced(clustered(1, 1, effect=-0.1), tail, times), priced=True, seconds=4000.0, look_s=100.0
        )
        for tail in ("lognormal", "Pareto")
        for words, times in (("half as dear", 0.5), ("equal cost", 1.0), ("10 % dearer", 1.1))
    },
    **{
        f"equal failures, {words}, {tail}, 25 % of traffic": by_subject(
            priced(clustered(1, 1), tail, times), priced=True, weight=0.25, seconds=4000.0, look_s=100.0
        )
        for tail in ("lognormal", "Pareto")
        for words, times in (("60 % dearer", 1.6), ("3 times as dear", 3.0))
    },
    "equal failures, 10 times the cap in one of ten, 10 % of traffic": by_subject(
        priced(clustered(1, 1), "lognormal", runs_away=0.1), priced=True, weight=0.1, seconds=4000.0, look_s=50.0
    ),
    "equal failures without cost, as above": by_subject(clustered(1, 1), weight=0.5, seconds=4000.0, look_s=100.0),
    "equal failures, equal cost, lognormal": by_subject(
        priced(clustered(1, 1), "lognormal"), priced=True, seconds=4000.0, look_s=100.0
    ),
    "fails everything, cost compared, 10 % of traffic; 10 x 5": by_subject(
        priced(clustered(10, 5, failure=0.05, effect=0.95), "lognormal"),
        priced=True,
        weight=0.1,
        seconds=4000.0,
        look_s=50.0,
    ),
}
"""How soon a canary is promoted, or rolled back by its cost."""


MORE = 1.5
"""So many times stable's complaints still count as not worse."""
FALSE_BY_COMPLAINTS: dict[str, Scene] = {
    "equal, of 4 %": Scene(complaining(EQUAL, (0.04, 0.04))),
    "equal, no complaint": Scene(complaining(EQUAL, (0.0, 0.0))),
    **{
        f"half as many again, of {100 * rate:.0f} %": Scene(complaining(EQUAL, (rate, MORE * rate)))
        for rate in (0.01, 0.04, 0.2)
    },
    "half as many again, half at once": Scene(complaining(EQUAL, (0.04, 0.06)), stages=HALF),
    "half as many again, 5 a second": Scene(
        complaining(plain(0.3, 0.3, 60, 60), (0.04, 0.06)),
        rate=5,
        seconds=1200,
        look_s=60,
        stages=(Stage(0.1, 300, 20), Stage(0.5, 9e9, 20)),
    ),
    "half as many again, at once on the canary": Scene(complaining(EQUAL, (0.04, 0.06), mean_s=(400.0, 5.0))),
    "half as many again, at once on stable": Scene(complaining(EQUAL, (0.04, 0.06), mean_s=(5.0, 400.0))),
    "half as many again, 5 times faster": Scene(complaining(plain(0.3, 0.3, 400, 80), (0.04, 0.06))),
    "half as many again, of failures": Scene(complaining(drift(0.08, 0.5), (0.2, 0.3), of_failures=True)),
    "half as many again, silent reward computer": Scene(
        complaining(plain(0.3, 0.3, 300, 60), (0.04, 0.06)), silent_s=(600, 1100)
    ),
    "half as many again, lapsed lease": Scene(complaining(lapse(800, 60), (0.04, 0.06))),
    "worse by every margin": Scene(complaining(plain(0.2, 0.25), (0.04, 0.06))),
    **{
        f"half as many again on average, +-100 % by subject; {n} x {at}": by_subject(
            complaining(clustered(n, at), (0.1, 0.15), spread=1.0)
        )
        for n, at in ((1, 1), (10, 20), (50, 5), (200, 1))
    },
}
"""At most half as many complaints again and else no worse than the margins: at most 5 % may be rolled back."""

POWER_BY_COMPLAINTS: dict[str, Scene] = {
    f"equal failures, {words}, {100 * weight:.0f} % of traffic; {n} x {at}": by_subject(
        complaining(clustered(n, at), rates), weight=weight, seconds=4000.0, look_s=100.0
    )
    for words, rates in (("4 % -> 8 %", (0.04, 0.08)), ("4 % -> 16 %", (0.04, 0.16)), ("1 % -> 10 %", (0.01, 0.1)))
    for weight in (0.1, 0.5)
    for n, at in ((1, 1), (10, 5))
}
"""How soon a canary is suspended and rolled back by complaints alone; one a second, known after 600 s."""
