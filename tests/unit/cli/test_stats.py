"""What `ratchet stats` shows of an answer."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ratchet.cli.stats import SIGNS_OF_A_TREND, show, trend
from ratchet.core.contract.http.statistics import StatisticsOut
from tests.support.console_statistics import group, statistics_out

BEGIN = datetime(2026, 11, 16, tzinfo=UTC)


def answer(means: list[float | None], others: int = 0) -> StatisticsOut:
    return statistics_out(BEGIN, [group("first", BEGIN, means), group(None, BEGIN, means[:1])], others)


def test_a_trend_goes_from_the_least_to_the_largest_mean() -> None:
    made = answer([0.0, None, 0.5, 1.0])
    assert trend(made, made.groups[0].points) == "▁·▅█"


def test_a_trend_of_equal_means_is_level() -> None:
    made = answer([0.4, 0.4, 0.4])
    assert trend(made, made.groups[0].points) == "▁▁▁"


def test_a_long_window_is_a_short_trend() -> None:
    made = answer([n / 100 for n in range(100)])
    signs = trend(made, made.groups[0].points)
    assert len(signs) <= SIGNS_OF_A_TREND
    assert (signs[0], signs[-1]) == ("▁", "█")


def test_groups_are_lines_and_what_is_left_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    show(answer([0.25, 0.75], others=7), over_time=False)
    head, first, unknown, others, note = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["agent", "trajectories", "success", "reward"]
    assert first.split()[:6] == ["first", "8", "50.0", "%", "0.500", "±"]
    assert (unknown.split()[0], others.split()[0]) == ("-", "(others)")
    assert note == "the 7 groups with the fewest trajectories are one line"


def test_buckets_are_lines_in_the_order_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    show(answer([0.25, 0.75]), over_time=True)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("day (UTC)")
    assert [line.split()[0] for line in lines] == ["2026-11-16", "2026-11-16", "2026-11-17"]
