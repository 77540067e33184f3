"""The sequential test of levels: silent without a change, soon with one, whatever the values look like."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from random import Random

import msgspec
import pytest

from ratchet.reward_computer.domain.shifts import (
    BETS,
    FORGOTTEN,
    LOOK,
    RENEWAL,
    WARM_UP,
    Reading,
    Shift,
    Tracker,
    centred_rank,
    follow,
)

Draw = Callable[[Random], float]

SHAPES: dict[str, Draw] = {
    "narrow": lambda random: random.gauss(0.5, 0.1),
    "wide": lambda random: random.gauss(0.5, 0.3),
    "done or not": lambda random: float(random.random() < 0.5),
    "nearly always done": lambda random: float(random.random() < 0.98),
    "always the same": lambda random: 0.7,
    "mostly 0": lambda random: random.random() ** 8,
}


def shifts(values: Iterable[float]) -> list[tuple[int, Shift]]:
    """The shifts that are seen, each with the number of the value at which it is."""
    trackers: Sequence[Tracker] = []
    seen: list[tuple[int, Shift]] = []
    for number, value in enumerate(values, 1):
        trackers, shift = follow(trackers, Reading(value, value))
        if shift is not None:
            seen.append((number, shift))
    return seen


def drawn(seed: int, draw: Draw, count: int, at: int = 0, by: float = 0.0) -> list[float]:
    """Values that are larger by `by` from the value number `at` on, all in 0..1."""
    random = Random(seed)
    return [min(1.0, max(0.0, draw(random) + (by if number >= at else 0.0))) for number in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
def test_shift_is_not_seen_where_there_is_none(shape: str) -> None:
    """The bound for these 4 x 1,500 values is 3 %."""
    assert [shifts(drawn(seed, SHAPES[shape], 2000)) for seed in range(4)] == [[]] * 4


@pytest.mark.parametrize(("spread", "by"), list(itertools.product([0.15, 0.25], [-0.1, 0.1])))
def test_shift_of_a_tenth_is_seen_within_500(spread: float, by: float) -> None:
    for seed in range(8):
        (number, shift), *_ = shifts(drawn(seed, lambda random: random.gauss(0.5, spread), 1500, 1000, by))
        assert 1000 < number <= 1500
        assert shift.rises == (by > 0)


def test_shift_names_the_levels_before_and_after() -> None:
    ((number, shift),) = shifts(drawn(1, lambda random: random.gauss(0.4, 0.1), 1400, 1000, 0.2))
    assert shift.before == pytest.approx(0.4, abs=0.02)
    assert shift.after == pytest.approx(0.6, abs=0.05)
    assert shift.values == pytest.approx(number - 1000, abs=30)


@pytest.mark.parametrize("at", [RENEWAL - 100, FORGOTTEN - 100])
def test_shift_is_seen_while_the_past_is_renewed(at: int) -> None:
    (number, _), *_ = shifts(drawn(2, lambda random: random.gauss(0.5, 0.2), at + 500, at, 0.1))
    assert at < number <= at + 500


def test_past_that_is_long_ago_is_forgotten() -> None:
    trackers: Sequence[Tracker] = []
    sizes: list[list[int]] = []
    for value in drawn(3, lambda random: random.random(), FORGOTTEN + 1):
        trackers, _ = follow(trackers, Reading(value, value))
        sizes.append([tracker.values for tracker in trackers])
    assert sizes[RENEWAL : RENEWAL + 2] == [[RENEWAL + 1, 1], [RENEWAL + 2, 2]]
    assert sizes[-1] == [FORGOTTEN - RENEWAL + 1]


def test_looks_are_as_few_as_the_bound_of_false_alarms_counts() -> None:
    trackers: Sequence[Tracker] = []
    looks: list[int] = []
    for value in drawn(6, lambda random: random.random(), FORGOTTEN + 1000):
        trackers, _ = follow(trackers, Reading(value, value))
        looks.append(sum(tracker.values % LOOK == 0 and tracker.runs[0].values > 0 for tracker in trackers))
    assert max(sum(looks[begin : begin + 1000]) for begin in range(FORGOTTEN)) <= 30


def test_watch_begins_anew_after_a_shift() -> None:
    values = drawn(4, lambda random: random.gauss(0.3, 0.1), 600) + drawn(4, lambda random: random.gauss(0.8, 0.1), 900)
    assert len(shifts(values)) == 1


def test_nothing_is_seen_while_the_past_is_collected() -> None:
    assert shifts([0.0] * (WARM_UP // 2) + [1.0] * (WARM_UP // 2)) == []
    assert shifts([0.0] * WARM_UP + [1.0] * (2 * LOOK))[0][0] == WARM_UP + LOOK


def test_trackers_go_on_from_what_was_stored() -> None:
    values = drawn(5, lambda random: random.gauss(0.5, 0.2), 1200, 900, 0.15)
    whole: Sequence[Tracker] = []
    stored: Sequence[Tracker] = []
    for value in values:
        expected = follow(whole, Reading(value, value))
        again = msgspec.json.decode(msgspec.json.encode(stored), type=list[Tracker])
        assert follow(again, Reading(value, value)) == expected
        whole, stored = expected[0], expected[0]


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5), (1, 1, 5, 5, 5), (0, 0, 0, 0, 1), (2, 2, 2, 2, 2)])
@pytest.mark.parametrize("bet", BETS)
def test_products_of_factors_have_the_mean_1_over_all_orders(values: Sequence[int], bet: float) -> None:
    """The theorem's core: whatever the values are, ties or not, and however many factors are multiplied."""
    for begin in range(len(values)):
        products = [
            math.prod(
                1 + bet * centred_rank([order[:place].count(level) for level in range(6)], order[place], place)
                for place in range(begin, len(order))
            )
            for order in itertools.permutations(values)
        ]
        assert math.fsum(products) / len(products) == pytest.approx(1.0)
