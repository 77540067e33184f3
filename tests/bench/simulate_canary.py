"""How often the canary errs, how soon it is rolled back, when it is promoted: `python -m tests.bench.simulate_canary`.

All through the product's tests and verdicts. Every scene is played `--rollouts` times; what has been played stands in a
file (`--file`), so that it goes on where it was stopped, and `--report` writes the tables into a file: the shares of
rollouts that end wrongly with exact 95 % intervals, and how soon. `--only detection` and `--only power` print the
seconds until a bad canary is rolled back at four rates of traffic, and promotions of good ones. Ends with 1 when the
lower end of an interval of wrong ends is above 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ratchet.canary_deployer.domain.e_processes import Floats
from ratchet.canary_deployer.domain.rules import Stage
from tests.support.canary_messages import Disturbed, play_messages
from tests.support.canary_scenes import (
    FALSE_BY_COMPLAINTS,
    FALSE_BY_COST,
    FALSE_BY_SUBJECT,
    FALSE_PROMOTIONS,
    FALSE_ROLLBACKS,
    LIMITS,
    NOT_BY_SUBJECT,
    POWER_BY_COMPLAINTS,
    POWER_BY_COST,
    POWER_BY_SUBJECT,
    WORSE_BY_COST,
    WORSE_BY_SUBJECT,
    by_subject,
    clustered,
    plain,
)
from tests.support.canary_simulation import Scene, exact_interval, play

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


SCENES: Mapping[str, tuple[str | None, Mapping[str, Scene | Disturbed]]] = {
    "No worse than any margin: rollbacks are wrong": ("rolled_back", {**FALSE_ROLLBACKS, **DISTURBED}),
    "Worse by a margin: promotions are wrong": ("promoted", FALSE_PROMOTIONS),
    "With cost, at most 25 % dearer and else no worse: rollbacks are wrong": ("rolled_back", FALSE_BY_COST),
    "With cost, 25 % dearer or worse else: promotions are wrong": ("promoted", WORSE_BY_COST),
    "By subject, no worse than the margin on average: rollbacks are wrong": ("rolled_back", FALSE_BY_SUBJECT),
    "By subject, worse by the margin on average: promotions are wrong": ("promoted", WORSE_BY_SUBJECT),
    "With complaints, at most half as many again and else no worse: rollbacks are wrong": (
        "rolled_back",
        FALSE_BY_COMPLAINTS,
    ),
    "Power": (None, POWER_BY_SUBJECT),
    "Power with cost": (None, POWER_BY_COST),
    "Power by complaints": (None, POWER_BY_COMPLAINTS),
    "Not promised": (None, {**LIMITS, **NOT_BY_SUBJECT}),
}
"""By title: which end is wrong, if one is, and the scenes."""
TOGETHER = 25
"""Rollouts that are played, and noted, together."""
BEGIN, END = "<!-- simulated -->\n", "<!-- end -->\n"


def played(rollouts: int, file: Path, only: str) -> list[dict[str, Any]]:
    """Play what is missing of every scene whose title or name has the text `only`; the rows of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [msgspec.json.decode(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["scene"], row["first"]) for row in rows}
    every = {
        key(title, name): scene
        for title, (_, scenes) in SCENES.items()
        for name, scene in scenes.items()
        if only in title or only in name
    }
    for first, (name, scene) in itertools.product(range(0, rollouts, TOGETHER), every.items()):
        if (name, first) in done:
            continue
        play_scene = play if isinstance(scene, Scene) else play_messages
        ends = play_scene(scene, rollouts=TOGETHER, seed=5000 + first)  # pyright: ignore[reportArgumentType] - its own
        ended = {kind: getattr(ends, f"{kind}_s").tolist() for kind in KINDS}
        line = msgspec.json.encode({"scene": name, "first": first, **ended})  # one that has not ended so: null
        rows.append(msgspec.json.decode(line))
        with file.open("ab") as lines:
            lines.write(line + b"\n")
    return rows


def key(title: str, name: str) -> str:
    """A scene in the file: names of scenes are theirs by subject, and of others within their table."""
    return name if "subject" in title or title in ("Power", "Not promised") else f"{title.partition(':')[0]}: {name}"


def tables(rows: list[dict[str, Any]], rollouts: int) -> tuple[str, bool]:
    """The report in Markdown, and whether no table shows that more than 5 % end wrongly."""
    parts, good = list[str](), True
    for title, (wrong, scenes) in SCENES.items():
        lines = list[str]()
        for name in scenes:
            own = [row for row in rows if row["scene"] == key(title, name) and row["first"] < rollouts]
            ends = {kind: [at for row in own for at in row[kind]] for kind in KINDS}
            if own:
                lines.append(f"| {name} | {len(ends['promoted']):,} | {' | '.join(map(_share, ends.values()))} |")
                good &= wrong is None or _limits(ends[wrong])[0] <= ALLOWED
        if lines:
            heads = f"| {title} | rollouts | suspended | rolled back | promoted |\n|---|---|---|---|---|"
            parts.append("\n".join([heads, *lines]))
    return "\n\n".join(parts), good


def written(report: Path, text: str) -> None:
    """Put the tables into the report, between its marks."""
    before, _, rest = report.read_text().partition(BEGIN)
    report.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


KINDS = ("suspended", "rolled_back", "promoted")


def _limits(times: list[float | None]) -> tuple[float, float]:
    return exact_interval(sum(at is not None for at in times), len(times))


def _share(times: list[float | None]) -> str:
    """Per cent, their exact 95 % interval, and the median of the seconds until then."""
    hits = [at for at in times if at is not None]
    low, high = _limits(times)
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
    parser.add_argument("--only", choices=("scenes", "detection", "power"))
    parser.add_argument("--scenes", default="", help="those with this text in their name or title")
    parser.add_argument("--file", type=Path, default=Path(".cache/simulation/rollouts.jsonl"))
    parser.add_argument("--report", type=Path, help="a file whose tables are written anew")
    options = parser.parse_args()
    good = True
    if options.only in (None, "scenes"):
        text, good = tables(played(options.rollouts, options.file, options.scenes), options.rollouts)
        written(options.report, text) if options.report else write(text)
    if options.only in (None, "detection"):
        detection(options.timed)
        detection_by_subject(options.timed)
    if options.only in (None, "power"):
        power(options.timed)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
