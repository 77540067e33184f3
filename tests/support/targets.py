"""The documented targets, as tests measure them in one run: `make test-all` prints them last.

A missed target fails no test: on a busy machine it says nothing of the code.
"""

from __future__ import annotations

from pathlib import Path

MEASURED = Path(".cache/tests/targets.txt")
"""A line for each measurement: `make test` removes it."""
TARGETS = {
    "collect": (0.1, "an agent's wait for the recording of a trajectory, 99 of 100"),
    "reward": (0.5, "from publish to the reward, 99 of 100, at 20 trajectories a second"),
    "queue": (300.0, "from a job to its start on a free worker, the longest"),
    "deploy": (300.0, "from a trained policy to its canary, gates included"),
    "rollback": (60.0, "from the route's change to a gateway that serves stable, its broker killed before"),
}
"""Seconds, and what they are of."""


def note_target(name: str, seconds: float) -> None:
    """Keep what a test measured of a target."""
    assert name in TARGETS
    MEASURED.parent.mkdir(parents=True, exist_ok=True)
    with MEASURED.open("a") as lines:
        lines.write(f"{name}\t{seconds:.4f}\n")


def report() -> list[str]:
    """A line for each target: the longest measurement of this run."""
    text = MEASURED.read_text() if MEASURED.exists() else ""
    longest: dict[str, float] = {}
    for name, seconds in (line.split("\t") for line in text.splitlines()):
        longest[name] = max(longest.get(name, 0.0), float(seconds))
    return [_line(name, longest.get(name)) for name in TARGETS]


def _line(name: str, seconds: float | None) -> str:
    bound_s, what = TARGETS[name]
    if seconds is None:
        return f"{name:9} not measured    of {bound_s:g} s: {what}"
    verdict = "met" if seconds <= bound_s else "MISSED"
    return f"{name:9} {seconds:7.3f} s {verdict:6} of {bound_s:g} s: {what}"


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201
