"""The report on mining: `python -m tools.analyst.report` mines worlds whose truth is known and writes docs/analyst.md.

Every figure of the page is measured by this run, and a target that it missed is listed as missed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

from ratchet.analyst.domain.looking import ASKED_SHARE, RATE
from ratchet.analyst.mining.base import Hypothesis
from ratchet.analyst.mining.mine import EACH_WINDOW, mine
from ratchet.analyst.mining.testing import Pools, p_values
from ratchet.core.contract.learning import Trigger
from tools.analyst.worlds import World, cause_of, is_true, planted, true_effect, world

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analyst.md"
HOURLY = (1 - ASKED_SHARE) / (90 * 24 + 1)
"""The part of a horizon's level that a run has of a role whose windows are an hour: the strictest one."""
SIZES = (1_000, 10_000, 100_000)
WORLDS = {1_000: 500, 10_000: 40, 100_000: 3}
EFFECTS = {1_000: (0.75, 1.7), 10_000: (0.2, 0.6), 100_000: (0.06, 0.2)}
"""Added to the probability of failing; logarithm of the factor on cost and latency."""
ARBITRARY = (
    *(("language", i) for i in range(8)),
    *(("model", i) for i in range(4)),
    *(("document", i) for i in range(8)),
)
LOOKS, STREAMS = 12, 2


@dataclass
class Tally:
    """What worlds of one size and kind came to."""

    worlds: int = 0
    reporting: int = 0
    """Worlds of which anything is reported."""
    false_share: list[float] = field(default_factory=list[float])
    findings: int = 0
    tested: int = 0
    recalled: list[float] = field(default_factory=list[float])
    """Share of the causes that are named, of each world."""
    named: Counter[str] = field(default_factory=Counter[str])
    covered: list[bool] = field(default_factory=list[bool])
    """Whether an interval of a finding about failures holds what was planted."""

    def add(self, truth: World, alpha: float, seed: int) -> None:
        mined = mine(truth.before, truth.now, alpha=alpha, seed=seed)
        self.worlds += 1
        self.tested += mined.tested
        self.findings += len(mined.findings)
        self.reporting += bool(mined.findings)
        self.false_share.append(np.mean([not is_true(each, truth) for each in mined.findings] or [0.0]).item())
        causes = {cause_of(each, truth) for each in mined.findings} - {None}
        self.recalled.append(len(causes) / max(1, len(truth.planted)))
        self.named.update(cause.trigger.attribute for cause in causes if cause)
        for each in mined.findings:
            effect = true_effect(each, truth)
            if effect is not None:
                self.covered.append(each.low <= effect <= each.high)


def run(size: int, worlds: int, effects: tuple[float, float] | None, alpha: float) -> Tally:
    tally = Tally()
    for seed in range(worlds):
        tally.add(world(size, planted(*effects) if effects else (), seed), alpha, seed)
        if seed % 50 == 49:
            sys.stderr.write(f"{size} trajectories, effects {effects}: {seed + 1} worlds\n")
    return tally


def unselected(worlds: int) -> list[float]:
    """P-values of 20 hypotheses a world that nothing formed, where nothing is planted."""
    tested: list[float] = []
    claims = [
        Hypothesis("association", attribute, measure, (Trigger(attribute=attribute, value=f"{attribute} {i}"),))
        for (attribute, i), measure in zip(ARBITRARY, ["failure", "cost_usd", "reward", "latency_ms"] * 5, strict=True)
    ]
    for seed in range(worlds):
        truth = world(1000, (), 10_000 + seed)
        tested += p_values(Pools.of(truth.before, truth.now), claims, RATE, seed).tolist()
    return tested


def streams() -> tuple[int, list[float]]:
    """Runs by the hour on new windows of the same planted role: distinct discoveries, and the share of false ones."""
    total, shares = 0, list[float]()
    for stream in range(STREAMS):
        discovered: dict[object, bool] = {}
        for look in range(LOOKS):
            truth = world(1000, planted(*EFFECTS[1000])[:2], 1000 * (stream + 1) + look)
            mined = mine(truth.before, truth.now, alpha=RATE * HOURLY, seed=look, discoveries=len(discovered))
            for each in mined.findings:
                discovered.setdefault((each.hypothesis.measure, each.hypothesis.triggers), is_true(each, truth))
        total += len(discovered)
        shares.append(1 - np.mean(list(discovered.values()) or [True]).item())
    return total, shares


def one_large(effects: Sequence[float]) -> tuple[float, float]:
    """Seconds and peak GB of one run on 100,000 trajectories a window, the world included in the memory."""
    truth = world(SIZES[-1], planted(*effects), 1)
    began = time.process_time()
    mine(truth.before, truth.now, alpha=RATE * HOURLY, seed=1)
    return time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="print seconds and GB of one run on 100,000 trajectories")
    parser.add_argument("--worlds", type=int, nargs=3, default=list(WORLDS.values()), metavar="N", help="of each size")
    arguments = parser.parse_args()
    if arguments.large:
        sys.stdout.write("{} {}".format(*one_large(EFFECTS[SIZES[-1]])))
        return
    began = time.process_time()
    large = subprocess.run(
        [sys.executable, "-m", "tools.analyst.report", "--large"], check=True, capture_output=True, text=True
    )
    seconds, memory = map(float, large.stdout.split())
    worlds = dict(zip(SIZES, arguments.worlds, strict=True))
    nothing = {size: run(size, count, None, RATE) for size, count in worlds.items()}
    causes = {size: run(size, count, EFFECTS[size], RATE * HOURLY) for size, count in worlds.items()}
    text = page(nothing, causes, unselected(50), streams(), (seconds, memory))
    PAGE.write_text(text.replace("@minutes", f"{(time.process_time() - began) / 60:.1f}"), encoding="utf-8")


def page(
    nothing: dict[int, Tally],
    causes: dict[int, Tally],
    arbitrary: Sequence[float],
    looks: tuple[int, list[float]],
    large: tuple[float, float],
) -> str:
    return "\n".join(
        [
            *INTRODUCTION,
            "",
            *_targets(nothing, causes, large),
            *_nothing(nothing, arbitrary),
            *_causes(causes),
            *_looks(looks),
            *LIMITS,
            "",
        ]
    )


def _met(holds: bool) -> str:
    return "met" if holds else "**missed**"


def _at_most(events: int, of: int, target: float) -> tuple[float, str]:
    """The bound below which a rate lies with 95 % (Clopper and Pearson, 1934), and what it says of a target."""
    bound = float(betaincinv(events + 1, of - events, 0.95)) if events < of else 1.0
    return bound, _judged(bound <= target, events / of > target)


def _judged(is_met: bool, is_missed: bool) -> str:
    return "met" if is_met else _met(False) if is_missed else "too few worlds to tell"


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean over worlds, and how far the true one may lie from it: 95 % to one side; 1 of fewer than ten."""
    error = 1.645 * np.std(values, ddof=1).item() / len(values) ** 0.5 if len(values) >= 10 else 1.0
    return np.mean(values).item(), error


def _targets(nothing: dict[int, Tally], causes: dict[int, Tally], large: tuple[float, float]) -> list[str]:
    rows = ["## Targets", "", "| target | measured | |", "|---|---|---|"]
    for size, tally in nothing.items():
        bound, judged = _at_most(tally.reporting, tally.worlds, 0.05)
        rows.append(
            f"| {size:,}: where nothing is planted at most 5 % of runs report anything "
            f"| {tally.reporting} of {tally.worlds} at the level .05; at most {bound:.1%} | {judged} |"
        )
    for size, tally in causes.items():
        false, _ = _mean(tally.false_share)
        bound, judged = _at_most(sum(share > 0 for share in tally.false_share), tally.worlds, 0.1)
        if bound > 0.1:
            judged = _judged(sum(_mean(tally.false_share)) <= 0.1, false > 0.1)
        rows.append(
            f"| {size:,}: at most 10 % of what is reported is false, on average "
            f"| {false:.1%}; at most {bound:.1%} of runs report anything false | {judged} |"
        )
        recall, error = _mean(tally.recalled)
        judged = _judged(recall - error >= 0.9, recall < 0.9)
        rows.append(
            f"| {size:,}: recall at the effects below is .9 or more "
            f"| {recall:.3f} of {5 * tally.worlds} causes | {judged} |"
        )
    rows.append(f"| 100,000 under 60 s | {large[0]:.0f} s of one core | {_met(large[0] < 60)} |")
    rows.append(f"| 100,000 under 1 GB | {large[1]:.2f} GB, the world included | {_met(large[1] < 1)} |")
    return [*rows, ""]


def _nothing(nothing: dict[int, Tally], arbitrary: Sequence[float]) -> list[str]:
    rows = [
        "## Where nothing is planted",
        "",
        "| trajectories a window | worlds | report anything | hypotheses a world |",
    ]
    rows.append("|---|---|---|---|")
    rows += [
        f"| {size:,} | {tally.worlds} | {tally.reporting} | {tally.tested / tally.worlds:.2f} |"
        for size, tally in nothing.items()
    ]
    shares = ", ".join(
        f"{np.mean(np.array(arbitrary) <= level):.2%} are at most {level:g}" for level in (0.05, 0.01, 0.001)
    )
    text = (
        f"Forming lets few hypotheses through, so the table says little of the test. Of {len(arbitrary):,} p-values of "
        f"hypotheses that nothing formed (traits of subjects whose luck lasts, costs with heavy tails): {shares}."
    )
    return [*rows, "", text, ""]


def _causes(causes: dict[int, Tally]) -> list[str]:
    names = ("task_type", "term", "language", "model", "tool")
    rows = ["## Where five causes are planted", ""]
    rows.append(
        f"| trajectories a window | worlds | failing | cost, latency | {' | '.join(names)} | findings | intervals |"
    )
    rows.append("|---" * (6 + len(names)) + "|")
    for size, tally in causes.items():
        added, factor = EFFECTS[size]
        named = " | ".join(f"{tally.named[name] / tally.worlds:.2f}" for name in names)
        rows.append(
            f"| {size:,} | {tally.worlds} | +{added * 100:.0f} points | x {np.exp(factor):.2f} | {named} "
            f"| {tally.findings / tally.worlds:.1f} | {np.mean(tally.covered or [np.nan]):.0%} |"
        )
    text = (
        "The columns with attributes: how often the cause is named. *Findings*: how many a run reports, of five. "
        "*Intervals*: of findings about failures, how often the 95 % interval holds the true difference in risk; "
        "their level is adjusted for the "
        "selection, their middle is not: those that passed a test are larger than in truth more often."
    )
    return [*rows, "", text, ""]


def _looks(looks: tuple[int, list[float]]) -> list[str]:
    return [
        "## Over time",
        "",
        f"{STREAMS} roles with two causes, {LOOKS} hourly runs of 1,000 trajectories each, levels as they are spent in "
        f"a horizon of hourly runs: {looks[0]} distinct discoveries, of which {np.mean(looks[1]):.1%} are false, on "
        "average over the roles.",
        "",
    ]


INTRODUCTION = f"""# What mining finds, and how often it errs

Made by `make analyst`, in @minutes minutes of one core. Each world has two windows of a role and all that
[mining](../services/ratchet/analyst/mining/mine.py) does: associations, failure clusters, behaviour and drift, one
family of hypotheses, formed on half of the subjects and tested on the others, by permutation of subjects, in both
windows. The [worlds](../tools/analyst/worlds.py) are simulated: subjects come back, some of them dozens of times, and
their luck, topics, language and model stay with them; costs and latencies have heavy tails; a tenth of the outcomes is
unknown; one task has rewards that only spread wider. No figure here is of a real agent.

Levels: where nothing is planted .05, of a single run; where something is, {RATE * HOURLY:.1e}, what an hourly run has
in a horizon of 90 days before anything is discovered. *Met* is what is so with 95 %, *missed* what was measured on the
wrong side; what the worlds are too few for says so. Rewards and feedback take minutes and an hour, and count as the
analyst counts them: within minutes of the end, in either window. Sizes are those of *each* window. There are fewer of
the large worlds since one of 100,000 takes about as long as a hundred of 1,000.
""".splitlines()
LIMITS = f"""## What this does not show

A test sees a quarter of a window's subjects, and at most four trajectories of each: what counts is the number of
subjects, so that a thousand trajectories bear out large effects only. Causes here have a trigger of one attribute. A
finding whose trajectories have a tenth of a cause's effect counts as true, with less as false. No world has a change
between its windows, or a drift that is true. Both windows together are tested at the run's level, each alone at
{EACH_WINDOW:g}: of incidents that are in truth in one window only, that share opens at most. Testing each at the
run's level would hold for those as well, and miss most of the causes here at 1,000 trajectories.
""".splitlines()

if __name__ == "__main__":
    main()
