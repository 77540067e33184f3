"""How many trajectories a canary needs: `python -m tests.bench.bench_canary [--rollouts 400]`.

Prints four tables: trajectories until a planted regression is rolled back, until a better or equal policy is promoted,
how often the tests err, and how often the held-out gate lets a policy pass. All are simulated with the product's
formulas (a unit test compares them), at its default thresholds; the last line measures the product itself.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ratchet.canary_deployer.domain.paired import compare
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.statistics import Finished, Statistics, observe
from tests.support.canary_simulation import Design, World, at_weight, simulate

Row = Sequence[object]


def regressions(rollouts: int) -> Iterator[Row]:
    """Mean and 90th percentile of trajectories (both arms together) until the rollback."""
    for stable, canary in ((0.16, 0.36), (0.16, 0.5), (0.16, 0.73), (0.16, 0.99), (0.5, 0.7), (0.5, 0.95)):
        for weight in (0.1, 0.25, 0.5):
            design = at_weight(Design(longest=3000), weight)
            outcome = simulate(World(stable, canary), design, rollouts=rollouts, seed=1)
            caught = outcome.rolled_back_at[outcome.rolled_back_at > 0]
            late = float(np.quantile(caught, 0.9)) if len(caught) else float("nan")
            share = f"{outcome.rolled_back:.1%}"
            yield (
                f"{stable:.2f} -> {canary:.2f}",
                f"{weight:.0%}",
                share,
                f"{outcome.mean_rollback():.0f}",
                f"{late:.0f}",
            )


def promotions(rollouts: int) -> Iterator[Row]:
    """Median and 90th percentile of trajectories until the promotion decision."""
    for stable, canary in ((0.5, 0.18), (0.5, 0.3), (0.2, 0.1), (0.18, 0.16), (0.16, 0.16), (0.5, 0.5)):
        for margin in (0.05, 0.1, 0.15):
            for weights in ((0.1, 0.25, 0.5), (0.25, 0.5)):
                design = Design(weights=weights, min_canary=(10,) * len(weights), margin=margin, longest=6000)
                outcome = simulate(World(stable, canary), design, rollouts=rollouts, seed=2)
                decided = outcome.promoted_at[outcome.promoted_at > 0]
                late = float(np.quantile(decided, 0.9)) if len(decided) else float("nan")
                stages = "/".join(f"{weight:.0%}" for weight in weights)
                median = f"{outcome.median_promotion():.0f}"
                yield f"{stable:.2f} -> {canary:.2f}", margin, stages, f"{outcome.promoted:.1%}", median, f"{late:.0f}"


def errors(rollouts: int) -> Iterator[Row]:
    """False rollbacks and false promotions within 2,000 trajectories; both may be 5 %."""
    for stable, margin in ((0.16, 0.05), (0.16, 0.1), (0.5, 0.05), (0.5, 0.1)):
        for extra, name in ((0.0, "equal"), (margin, "worse by the margin")):
            world = World(stable, stable + extra, reward_low=1.0, reward_high=1.0)
            outcome = simulate(world, Design(margin=margin, longest=2000), rollouts=rollouts, seed=3)
            false_promotions = f"{outcome.promoted:.1%}" if extra else "-"
            yield f"{stable:.2f}", margin, name, f"{outcome.rolled_back:.1%}", false_promotions


def gate(runs: int) -> Iterator[Row]:
    """How often a candidate passes when both policies draw their successes independently."""
    draw = random.Random(4)
    for tasks in (100, 200, 300, 400, 800):
        for stable, candidate in ((0.8, 0.8), (0.5, 0.5), (0.5, 0.82), (0.8, 0.75), (0.8, 0.6)):
            passed = [_passes(draw, tasks, stable, candidate) for _ in range(runs)]
            shares = [f"{sum(one[place] for one in passed) / runs:.1%}" for place in range(2)]
            yield tasks, f"{stable:.2f} -> {candidate:.2f}", *shares


def _passes(draw: random.Random, tasks: int, stable: float, candidate: float) -> tuple[bool, bool]:
    """At confidence .8 (the default) and .95."""
    wins = [float((draw.random() < candidate) - (draw.random() < stable)) for _ in range(tasks)]
    return compare(wins, 0.8, 0.05).passed, compare(wins, 0.95, 0.05).passed


def seconds_per_trajectory(count: int = 5000) -> float:
    """Cost of the product's own statistics."""
    rules = Rules(stages=(Stage(0.25, 0, 0),))
    draw = random.Random(5)
    statistics = Statistics()
    started = time.perf_counter()
    for _ in range(count):
        failed = draw.random() < 0.2
        one = Finished(draw.random() < 0.25, 0.25, failed, 0.0 if failed else 0.8, latency_ms=50.0)
        statistics = observe(statistics, one, rules)
    return (time.perf_counter() - started) / count


def table(title: str, heads: Row, rows: Iterator[Row]) -> None:
    """Print one table, row by row as it is computed."""
    sys.stdout.write(f"\n{title}\n{_line(heads)}\n")
    for row in rows:
        sys.stdout.write(f"{_line(row)}\n")
        sys.stdout.flush()


def _line(row: Row) -> str:
    return "  ".join(f"{cell!s:>20}" if place else f"{cell!s:<18}" for place, cell in enumerate(row))


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=400)
    rollouts = parser.parse_args().rollouts
    heads = ("failure rate", "weight", "rolled back", "mean trajectories", "90th percentile")
    table("Rollback of a regression (margin .05)", heads, regressions(rollouts))
    heads = ("failure rate", "margin", "stages", "promoted by 6,000", "median trajectories", "90th percentile")
    table("Promotion (10 canary trajectories per stage at least)", heads, promotions(rollouts))
    heads = ("failure rate", "margin", "canary is", "false rollbacks", "false promotions")
    table("Errors within 2,000 trajectories", heads, errors(rollouts))
    table("Held-out gate passes", ("tasks", "success", "at .80", "at .95"), gate(rollouts))
    sys.stdout.write(f"\nstatistics cost {1e6 * seconds_per_trajectory():.0f} us per trajectory\n")


if __name__ == "__main__":
    main()
