"""The documented targets, as tests measure them in one run: `make test-all` prints them last.

A missed target fails no test: on a busy machine it says nothing of the code.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from statistics import median
from typing import NamedTuple

MEASURED = Path(".cache/tests/targets.txt")
"""A line for each measurement: `make test` removes it."""


class Target(NamedTuple):
    """A bound, and what is measured."""

    seconds: float
    of: str
    share: float = 1.0
    """So many of the measurements must keep to it."""


TARGETS = {
    "collect": Target(0.1, "an agent's wait for the recording of a trajectory", 0.99),
    "reward": Target(0.5, "from publish to the reward, at 20 trajectories a second", 0.99),
    "queue": Target(300.0, "from a job to its start on a free worker"),
    "deploy": Target(300.0, "from a trained policy to its canary, gates included"),
    "rollback": Target(60.0, "from the route's change to a gateway that serves stable, its broker killed before"),
}


def note_target(name: str, *seconds: float) -> None:
    """Keep what a test measured of a target."""
    assert name in TARGETS
    MEASURED.parent.mkdir(parents=True, exist_ok=True)
    with MEASURED.open("a") as lines:
        lines.writelines(f"{name}\t{one:.4f}\n" for one in seconds)


def report(measured: str) -> list[str]:
    """A line for each target, of all measurements of a run: what its share keeps to, median and number."""
    seconds: dict[str, list[float]] = {name: [] for name in TARGETS}
    for name, one in (line.split("\t") for line in measured.splitlines()):
        seconds[name].append(float(one))
    return [_line(name, sorted(seconds[name])) for name in TARGETS]


def _line(name: str, seconds: list[float]) -> str:
    bound_s, what, share = TARGETS[name]
    if not seconds:
        return f"{name:9} not measured    of {bound_s:g} s: {what}"
    kept = seconds[ceil(share * len(seconds)) - 1]
    verdict = "met" if kept <= bound_s else "MISSED"
    which = f"{share:.0%}" if share < 1 else "the longest"
    spread = f"{which} of {len(seconds)}, median {median(seconds):.3f} s"
    return f"{name:9} {kept:7.3f} s {verdict:6} of {bound_s:g} s: {what} ({spread})"


if __name__ == "__main__":
    print("\n".join(report(MEASURED.read_text() if MEASURED.exists() else "")))  # noqa: T201
