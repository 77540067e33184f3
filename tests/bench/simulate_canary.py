"""How often the canary errs, how soon it is rolled back, when it is promoted: `python -m tests.bench.simulate_canary`.

`--only subjects` plays clustered traffic instead, as docs/canary-subjects.md has it; what has been played stands in a
file (`--file`), so that it goes on where it was stopped. Else it prints three tables, all through the product's tests
and verdicts: error rates of every scene with exact 95 % intervals (`--rollouts 5000`), seconds until a bad canary is
rolled back at four rates of traffic, and promotions of good ones. Ends with 1 when the lower end of an interval is
above 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from ratchet.canary_deployer.domain.e_processes import Floats
from ratchet.canary_deployer.domain.rules import Stage
from tests.support.canary_messages import Disturbed, play_messages
from tests.support.canary_scenes import (
    FALSE_BY_SUBJECT,
    FALSE_PROMOTIONS,
    FALSE_ROLLBACKS,
    LIMITS,
    NOT_BY_SUBJECT,
    POWER_BY_SUBJECT,
    WORSE_BY_SUBJECT,
    by_subject,
    clustered,
    plain,
)
from tests.support.canary_simulation import Scene, counted, exact_interval, play

ALLOWED = 0.05
DISTURBED: Mapping[str, Disturbed] = {
    "messages twice, retries, restarts": Disturbed((0.3, 0.3), (150, 30)),
    "the same, worse by the margin": Disturbed((0.2, 0.25), (120, 30)),
}
"""Through the fold of messages."""
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


def errors(scenes: Mapping[str, Scene], kind: str, rollouts: int) -> bool:
    """Print one line a scene; whether all are within 5 %."""
    good = True
    for name, scene in scenes.items():
        hits = counted(scene, kind, rollouts)
        good &= shown(kind, name, hits, rollouts)
    return good


def shown(kind: str, name: str, hits: int, rollouts: int) -> bool:
    """Print one line; whether the rate is within 5 %."""
    low, high = exact_interval(hits, rollouts)
    line = f"{kind:12s} {name:42s} {hits:5d} of {rollouts}  {hits / rollouts:6.2%}  [{low:.2%}, {high:.2%}]"
    write(line + ("" if low <= ALLOWED else "  RED"))
    return low <= ALLOWED


def detection(rollouts: int) -> None:
    """Median seconds until the rollback, at 10 % of traffic: one table in Markdown, row by row."""
    write(f"| failure rate, mean duration | {' | '.join(TRAFFIC)} |\n|---|" + "---|" * len(TRAFFIC))
    for name in DETECTED:
        cells = [_detected(name, *traffic, rollouts) for traffic in TRAFFIC.values()]
        write(f"| {name} | {' | '.join(cells)} |")


def detection_by_subject(rollouts: int) -> None:
    """Median seconds until the suspension and the rollback, at 10 % of traffic, in sessions of 10, five at a time."""
    write(f"| suspended; rolled back: failure rate | {' | '.join(TRAFFIC)} |\n|---|" + "---|" * len(TRAFFIC))
    for stable, canary in ((0.05, 1.0), (0.3, 1.0), (0.3, 0.6)):
        cells: list[str] = []
        for rate, seconds, look_s in TRAFFIC.values():
            draw = clustered(10, 5, failure=stable, effect=canary - stable)
            changes = {"rate": rate, "look_s": look_s, "stages": FOREVER, "horizon_s": 1800.0}
            ends = play(by_subject(draw, seconds=seconds, **changes), rollouts=rollouts, seed=9)
            cells.append(f"{_median(ends.suspended_s, seconds)}; {_median(ends.rolled_back_s, seconds)}")
        write(f"| {stable:g} -> {canary:g} | {' | '.join(cells)} |")


def _median(times: Floats, seconds: float) -> str:
    """The median, or how many came within the time that is simulated."""
    took = np.sort(np.where(times <= seconds, times, np.inf))
    middle = took[len(took) // 2]
    within = int(np.isfinite(took).sum())
    return f"{middle:,.0f}" if np.isfinite(middle) else f"{within} of {len(took)} within {seconds:,.0f}"


def _detected(name: str, rate: float, seconds: float, look_s: float, rollouts: int) -> str:
    """One cell: the median, or how many were rolled back within the time that is simulated."""
    stable, canary, stable_s, canary_s = DETECTED[name]
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
    took = np.sort(np.where(ends.rolled_back_s <= seconds, ends.rolled_back_s, np.inf))
    within, middle = int(np.isfinite(took).sum()), took[len(took) // 2]
    if np.isfinite(middle):
        return f"{middle:,.0f}" + ("" if within == rollouts else f" ({within} of {rollouts} within {seconds:,.0f})")
    return f"{within} of {rollouts} within {seconds:,.0f}"


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


SUBJECTS: Mapping[str, Mapping[str, Scene]] = {
    "No worse than the margin on average: rollbacks are wrong": FALSE_BY_SUBJECT,
    "Worse by the margin on average: promotions are wrong": WORSE_BY_SUBJECT,
    "Power": POWER_BY_SUBJECT,
    "Not promised": NOT_BY_SUBJECT,
}
TOGETHER = 25
"""Rollouts that are played, and noted, together."""


def subjects(rollouts: int, file: Path) -> None:
    """Play what is missing of every scene, then print the tables in Markdown."""
    file.parent.mkdir(parents=True, exist_ok=True)
    known = [msgspec.json.decode(line) for line in file.read_text().splitlines()] if file.exists() else []
    played = {(row["scene"], row["first"]) for row in known}
    every = {name: scene for scenes in SUBJECTS.values() for name, scene in scenes.items()}
    for first, (name, scene) in itertools.product(range(0, rollouts, TOGETHER), every.items()):
        if (name, first) in played:
            continue
        ends = play(scene, rollouts=TOGETHER, seed=5000 + first)
        times = {kind: getattr(ends, f"{kind}_s").tolist() for kind in KINDS}
        known.append({"scene": name, "first": first, **times})
        with file.open("a") as lines:
            lines.write(msgspec.json.encode(known[-1]).decode() + "\n")
    for title, scenes in SUBJECTS.items():
        write(f"\n| {title} | suspended | rolled back | promoted |\n|---|---|---|---|")
        for name in scenes:
            rows = [row for row in known if row["scene"] == name and row["first"] < rollouts]
            cells = [_share([at for row in rows for at in row[kind]]) for kind in KINDS]
            write(f"| {name} | {' | '.join(cells)} |")


KINDS = ("suspended", "rolled_back", "promoted")


def _share(times: list[float | None]) -> str:
    """Per cent, their exact 95 % interval, and the median of the trajectories until then."""
    hits = [at for at in times if at is not None]
    low, high = exact_interval(len(hits), len(times))
    median = f", {np.median(hits):,.0f}" if hits else ""
    return f"{len(hits) / len(times):.1%} [{low:.1%}, {high:.1%}]{median}"


def write(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--timed", type=int, default=60, help="rollouts for the tables of times")
    parser.add_argument("--only", choices=("errors", "detection", "power", "subjects"))
    parser.add_argument("--file", type=Path, default=Path(".cache/simulation/subjects.jsonl"))
    options = parser.parse_args()
    if options.only == "subjects":
        subjects(options.rollouts, options.file)
        return
    good = True
    if options.only in (None, "errors"):
        good = errors(FALSE_ROLLBACKS, "rolled_back", options.rollouts)
        good &= errors(FALSE_PROMOTIONS, "promoted", options.rollouts)
        for name, scene in DISTURBED.items():
            hits = play_messages(scene, rollouts=options.rollouts, seed=15).rolled_back
            good &= shown("rolled_back", name, hits, options.rollouts)
        write("not promised:")
        errors(LIMITS, "rolled_back", options.rollouts)
    if options.only in (None, "detection"):
        detection(options.timed)
        detection_by_subject(options.timed)
    if options.only in (None, "power"):
        power(options.timed)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
