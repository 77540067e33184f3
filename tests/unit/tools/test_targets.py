"""The last lines of `make test-all`: what a run measured of each documented target."""

from __future__ import annotations

from tests.support.targets import TARGETS, report


def line_of(name: str, measured: str) -> str:
    return next(line for line in report(measured) if line.startswith(name))


def test_a_target_is_met_where_its_share_of_measurements_keeps_to_it() -> None:
    measured = "reward\t0.1000\n" * 198 + "reward\t0.4000\n" + "reward\t9.0000\n"
    line = line_of("reward", measured)
    assert line.startswith("reward      0.100 s met    of 0.5 s: ")
    assert line.endswith("(99% of 200, median 0.100 s)")
    assert " MISSED of 0.5 s" in line_of("reward", measured + "reward\t9.0000\n" * 2)


def test_the_longest_measurement_counts_where_a_target_is_for_all() -> None:
    line = line_of("queue", "queue\t301.0000\nqueue\t0.5000\nqueue\t0.2500\n")
    assert line.startswith("queue     301.000 s MISSED of 300 s: ")
    assert line.endswith("(the longest of 3, median 0.500 s)")


def test_a_target_that_no_test_measured_is_named() -> None:
    assert [line.split()[0] for line in report("") if " not measured " in line] == list(TARGETS)
