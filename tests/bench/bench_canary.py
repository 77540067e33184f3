"""The cost of the canary's statistics, and how often the held-out gate passes: `python -m tests.bench.bench_canary`.

Error rates and times until a decision are printed by `python -m tests.bench.simulate_canary`.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence

from ratchet.canary_deployer.domain.paired import compare
from ratchet.canary_deployer.domain.rollout_statistics import LiveStatistics, Statistics
from ratchet.canary_deployer.domain.rules import Rules, Stage
from ratchet.canary_deployer.domain.trajectories import Batch, Call, Compared, Event, Opinion, Score, Started, Terms

Row = Sequence[object]


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


def processor_share(
    *, priced: bool = False, outcomes_s: int = 1800, complaints: float = 0.0, rate: int = 20, tick_s: float = 0.5
) -> Iterator[Row]:
    """Share of one core at `rate` trajectories a second when outcomes take up to `outcomes_s`: at the horizon 36,000
    are open. Users complain of so many."""
    horizon_s = 1800
    rules, compared = (
        Rules(stages=(Stage(0.1, 0, 0),), horizon_s=float(horizon_s)),
        Compared("r", 1, 2, frozenset({0.1})),
    )
    rules = rules.with_cost(1.0) if priced else rules
    draw, watching = random.Random(5), LiveStatistics(Statistics(), [], rules)
    ends: list[Event] = []
    number, now = 0, 0.0

    def arriving(seconds: float) -> Batch:
        nonlocal number, now
        started: list[Event] = []
        for _ in range(round(rate * seconds)):
            number += 1
            at, canary = number / rate, draw.random() < 0.1
            name, arm, version = f"t{number}", "canary" if canary else "stable", 2 if canary else 1
            started.append(Started(name, at, arm, version, 0.1, "r", Terms(0.3, 0.3, 0.3, 0.5, 900.0)))
            started.append(Call(name, at, True, arm, version, False, 900.0, cost_usd=0.04))
            scored_at = at + draw.uniform(0, outcomes_s)
            ends.append(Score(name, scored_at, draw.random() > 0.3, draw.random(), False))
            if complaints and draw.random() < complaints:
                ends.append(Opinion(name, at + draw.uniform(0, 600), bad=True))
        now += seconds
        due = [end for end in ends if end.at <= now]
        ends[:] = [end for end in ends if end.at > now]
        return Batch([*started, *due], now)

    for _ in range(horizon_s // 60 + (outcomes_s < horizon_s)):
        watching.fold(arriving(60.0), compared, rules)
    watching.record(0.1)
    batches = [arriving(tick_s) for _ in range(40)]
    folded, weighed = 0.0, 0.0
    for batch in batches:
        began = time.process_time()
        watching.fold(batch, compared, rules)
        after = time.process_time()
        watching.record(0.1)
        folded, weighed = folded + after - began, weighed + time.process_time() - after
    ticks = len(batches)
    held = sum(len(chunk.trajectories) for chunk in watching.window.open)
    yield (
        f"{held}{', with cost' if priced else ''}",
        f"{1e3 * folded / ticks:.1f}",
        f"{1e3 * weighed / ticks:.1f}",
        f"{(folded + weighed) / ticks / tick_s:.1%}",
    )


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
    parser.add_argument("--runs", type=int, default=400)
    runs = parser.parse_args().runs
    table("Held-out gate passes", ("tasks", "success", "at .80", "at .95"), gate(runs))
    heads = ("trajectories open", "fold, ms a tick", "weigh, ms a tick", "share of a core")
    table("Statistics at 20 trajectories a second, a tick every .5 s", heads, processor_share(priced=False))
    table("The same, with cost", heads, processor_share(priced=True))
    table("Outcomes within a minute", heads, processor_share(outcomes_s=60))
    table("The same, and 3 % are complained of", heads, processor_share(outcomes_s=60, complaints=0.03))


if __name__ == "__main__":
    main()
