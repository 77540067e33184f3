"""How often changes of rewards are seen where there are none, and how soon where there is one.

`python -m tests.bench.bench_drift [--worlds 200]` prints the tables of docs/reward-drift.md. Every world is a role's
rewards from a seeded generator (tests/support/drift_worlds.py), through the product's own fold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ratchet.core.rules.intervals import wilson
from tests.support.drift_worlds import Draw, Planted, alerts, done_or_not, rewards, wide

SILENT = 3000
"""Trajectories of a world without a change."""
PAST, SOON = 1000, 500
"""Trajectories before a change, and those within which it should be seen."""


class Change(NamedTuple):
    """A change that is planted, and the metric that should show it."""

    metric: str
    by: Mapping[str, float]
    alone: Draw | None = None
    """What is scored where nothing else is."""


ALL = {"task_completion": -0.1, "efficiency": -0.1, "user_feedback": -0.1}
CHANGES: Mapping[str, Change] = {
    "every score falls by .1": Change("reward", ALL),
    "`task_completion` alone rises by .1": Change("task_completion", {"task_completion": 0.1}),
    "`efficiency` alone rises by .1": Change("efficiency", {"efficiency": 0.1}),
    "`user_feedback`, which one in three has, falls by .1": Change("user_feedback", {"user_feedback": -0.1}),
    "all but the judge's score rise by .1": Change("judge", {name: -by for name, by in ALL.items()}),
    "the judge's score falls by .1": Change("judge", {"judge": -0.1}),
    "answers get a third longer": Change("length", {"length": 1 / 3}),
    "one model call more": Change("calls", {"calls": 1.0}),
    "one score that spreads by .29 falls by .1": Change("reward", {"task_completion": -0.1}, wide),
    "done or not: .5 becomes .4": Change("reward", {"task_completion": -0.1}, done_or_not),
    "done or not: .5 becomes .3": Change("reward", {"task_completion": -0.2}, done_or_not),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=200)
    worlds: int = parser.parse_args().worlds
    _say("| no change, 3,000 trajectories | worlds | with an alert | 95 % |\n|---|---|---|---|")
    for name, alone in (("seven metrics", None), ("one wide score", wide), ("done or not", done_or_not)):
        loud = sum(any(alerts(rewards(seed, SILENT, alone=alone))) for seed in range(worlds))
        low, high = wilson(loud, worlds)
        _say(f"| {name} | {worlds} | {loud} | {low:.1%} to {high:.1%} |")
    _say("\n| after 1,000 trajectories | seen within 500 | median | 95 of 100 | alert before |\n|---|---|---|---|---|")
    for name, change in CHANGES.items():
        _say(f"| {name} | {_row(change, worlds)} |")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _row(change: Change, worlds: int) -> str:
    planted, delays, early = Planted(PAST, change.by), list[float](), 0
    for seed in range(worlds):
        stream = rewards(seed, PAST + 2 * SOON, planted, alone=change.alone)
        numbers = [number for number, metric, _ in alerts(stream) if metric == change.metric]
        early += bool(numbers) and numbers[0] < PAST
        delays.append(next((number + 1 - PAST for number in numbers if number >= PAST), float("inf")))
    seen = sum(delay <= SOON for delay in delays)
    low, high = wilson(seen, worlds)
    slow = sorted(delays)[int(0.95 * worlds)]
    shown = f"{slow:.0f}" if slow < float("inf") else f"above {2 * SOON}"
    return f"{seen / worlds:.1%} ({low:.1%} to {high:.1%}) | {statistics.median(delays):.0f} | {shown} | {early}"


if __name__ == "__main__":
    main()
