"""How often the canary errs, how soon it is rolled back, when it is promoted: `python -m tests.bench.simulate_canary`.

Prints three tables, all through the product's tests and verdicts: error rates of every scene with exact 95 % intervals
(`--rollouts 5000`), seconds until a bad canary is rolled back at four rates of traffic, and promotions of good ones.
Ends with 1 when the lower end of an interval is above 5 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import numpy as np

from ratchet.canary_deployer.domain.rules import Stage
from tests.support.canary_scenes import FALSE_PROMOTIONS, FALSE_ROLLBACKS, LIMITS, plain
from tests.support.canary_simulation import Scene, exact_interval, play

ALLOWED = 0.05
AT_ONCE = 200
"""Rollouts that are played together: what fits the processor's cache."""
FOREVER = (Stage(0.1, 9e12, 20),)
DETECTED: Mapping[str, tuple[float, float, float, float]] = {
    "worse .3 -> .45, 300 s long": (0.3, 0.45, 300, 300),
    "worse .3 -> .6, 300 s long": (0.3, 0.6, 300, 300),
    "broken .3 -> 1, 300 s long": (0.3, 1.0, 300, 300),
    "broken .3 -> 1, fails at once": (0.3, 1.0, 300, 5),
    "broken .05 -> 1, 20 s long": (0.05, 1.0, 20, 20),
    "broken .3 -> 1, 20 s long": (0.3, 1.0, 20, 20),
    "first calls fail, .01 -> 1": (0.05, 1.0, 300, 300),
}
"""Failure rates of stable and canary, mean durations of stable and canary."""
TRAFFIC: Mapping[str, tuple[float, float, float]] = {
    "20 a second": (20.0, 700.0, 10.0),
    "1 a second": (1.0, 3600.0, 30.0),
    "300 a day": (300 / 86400, 7 * 86400.0, 3600.0),
    "20 a day": (20 / 86400, 60 * 86400.0, 43200.0),
}
"""Trajectories a second, seconds that are simulated, seconds between looks."""


def counted(scene: Scene, kind: str, rollouts: int) -> int:
    """Rollouts of a scene that ended so."""
    parts = range(0, rollouts, AT_ONCE)
    ends = [play(scene, rollouts=min(AT_ONCE, rollouts - first), seed=1000 + first) for first in parts]
    return sum(getattr(one, kind) for one in ends)


def errors(scenes: Mapping[str, Scene], kind: str, rollouts: int) -> bool:
    """Print one line a scene; whether all are within 5 %."""
    good = True
    for name, scene in scenes.items():
        hits = counted(scene, kind, rollouts)
        low, high = exact_interval(hits, rollouts)
        good &= low <= ALLOWED
        line = f"{kind:12s} {name:40s} {hits:5d} of {rollouts}  {hits / rollouts:6.2%}  [{low:.2%}, {high:.2%}]"
        write(line + ("" if low <= ALLOWED else "  RED"))
    return good


def detection(rollouts: int) -> None:
    """Median and 90th percentile of the seconds until the rollback, at 10 % of traffic."""
    for traffic, (rate, seconds, look_s) in TRAFFIC.items():
        for name, (stable, canary, stable_s, canary_s) in DETECTED.items():
            first = (0.01, 1.0) if name.startswith("first") else (0.0, 0.0)
            scene = Scene(
                plain(stable, canary, stable_s, canary_s, first_failure=first),
                rate=rate,
                seconds=seconds,
                look_s=look_s,
                stages=FOREVER,
                horizon_s=1800.0,
            )
            ends = play(scene, rollouts=rollouts, seed=7)
            within = ends.rolled_back_s <= seconds
            took = np.sort(np.where(within, ends.rolled_back_s, np.inf))
            middle, late = took[len(took) // 2], took[int(0.9 * len(took))]
            times = f"median {middle:10.0f} s  90 % {late:10.0f} s"
            write(f"{traffic:12s} {name:32s} {int(within.sum()):4d} of {rollouts}  {times}")


def power(rollouts: int) -> None:
    """Promotions within two hours, margin .05, half of the traffic, 1 a second, 300 s long."""
    for name, stable, canary in (("equal", 0.3, 0.3), ("better", 0.3, 0.2), ("worse by the margin", 0.3, 0.35)):
        scene = Scene(
            plain(stable, canary, 300, 300), seconds=7200, look_s=120, stages=(Stage(0.5, 0, 20),), horizon_s=1800.0
        )
        ends = play(scene, rollouts=rollouts, seed=8)
        took = ends.promoted_s[~np.isnan(ends.promoted_s)]
        median = f"median {np.median(took) / 60:.0f} min" if len(took) else ""
        write(f"{name:22s} promoted {ends.promoted:4d} of {rollouts}  {median}  rolled back {ends.rolled_back}")


def write(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--timed", type=int, default=60, help="rollouts for the tables of times")
    parser.add_argument("--only", choices=("errors", "detection", "power"))
    options = parser.parse_args()
    good = True
    if options.only in (None, "errors"):
        good = errors(FALSE_ROLLBACKS, "rolled_back", options.rollouts)
        good &= errors(FALSE_PROMOTIONS, "promoted", options.rollouts)
        write("not promised:")
        errors(LIMITS, "rolled_back", options.rollouts)
    if options.only in (None, "detection"):
        detection(options.timed)
    if options.only in (None, "power"):
        power(options.timed)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
