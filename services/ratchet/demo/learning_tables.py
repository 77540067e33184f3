"""What the learning report says: exams over seeds, two kinds of intervals, and how safe the demo's claim is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.demo.exams import GREEDY, SAMPLED, Exam
from ratchet.demo.intervals import Proportion
from ratchet.demo.world import MISJUDGED

START, RLOO, REJECTION = "imitation of the clerk", "rloo", "rejection sampling"
METHODS = (RLOO, REJECTION)
OVERALL, OF_MISJUDGED = "all kinds", "misjudged kinds"


class Count(msgspec.Struct, frozen=True):
    """Solved tickets."""

    successes: int
    trials: int

    def proportion(self) -> Proportion:
        """With its interval over tickets."""
        return Proportion(self.successes, self.trials)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's exam."""

    seed: int
    method: str
    cycle: int
    """0: before any cycle."""
    counts: Mapping[str, Mapping[str, Count]]
    """By mode, then by kind of ticket."""
    valid_calls: float | None
    """Share of tool calls that were well formed; None without any call."""

    @classmethod
    def of(cls, seed: int, method: str, cycle: int, exam: Exam) -> Measured:
        """Count an exam."""
        counts = {mode: {kind: _count(exam.success(mode, {kind})) for kind in exam.kinds} for mode in (GREEDY, SAMPLED)}
        valid = exam.valid_calls()
        return cls(seed=seed, method=method, cycle=cycle, counts=counts, valid_calls=valid.rate if valid else None)

    def success(self, mode: str, kinds: str = OVERALL) -> Proportion:
        """Over all kinds, over the misjudged ones, or of one kind by its name."""
        by_kind = self.counts[mode]
        chosen = [
            count
            for kind, count in by_kind.items()
            if kinds in (OVERALL, kind) or (kinds == OF_MISJUDGED and kind in MISJUDGED)
        ]
        return Proportion(sum(one.successes for one in chosen), sum(one.trials for one in chosen))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what the figures were made."""

    command: str
    machine: str
    versions: Mapping[str, str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The data file."""

    setting: Setting
    recipe: Mapping[str, float]
    measured: Sequence[Measured]


@dataclass(frozen=True, slots=True)
class OverSeeds:
    """The mean over seeds with its 95 % Student interval; without spread for a single seed."""

    values: Sequence[float]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, 0 for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def half_width(self) -> float | None:
        """Of the 95 % interval of the mean; None for a single seed."""
        count = len(self.values)
        return student_quantile(0.975, count - 1) * self.spread / math.sqrt(count) if count > 1 else None

    def chance_above(self, least: float) -> float | None:
        """Probability that one more run lies above `least`: Student's predictive distribution of seeds.

        It takes runs as normal around an unknown mean with an unknown spread. None for a single seed.
        """
        count = len(self.values)
        if count < 2:
            return None
        scale = self.spread * math.sqrt(1 + 1 / count)
        return student_below((self.mean - least) / scale, count - 1) if scale else float(self.mean >= least)

    def __str__(self) -> str:
        width = self.half_width
        return f"{self.mean:.2f}" + (f" ± {width:.2f}" if width is not None else "")


def student_below(value: float, freedom: int) -> float:
    """P(T <= value) of Student's distribution, by Simpson's rule on its density."""
    steps = 2000
    width = abs(value) / steps
    density = [_student_density(place * width, freedom) for place in range(steps + 1)]
    area = width / 3 * (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))
    return 0.5 + math.copysign(area, value)


def _student_density(value: float, freedom: int) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(value * value / freedom))


def student_quantile(probability: float, freedom: int) -> float:
    """The value that Student's distribution stays below with this probability (above one half), by bisection."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def draw_tables(report: Report, least_rise: float, cycles: int) -> str:
    """The whole report as Markdown. `least_rise` and `cycles`: what the demo claims, and after how many cycles."""
    parts = [
        _head(report),
        _success_table(report, OVERALL),
        _success_table(report, OF_MISJUDGED),
        _kinds(report),
        _claim(report, least_rise, cycles),
    ]
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    setting, recipe = report.setting, report.recipe
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    numbers = ", ".join(f"{name} {value:g}" for name, value in recipe.items())
    tickets = next(iter(report.measured)).success(GREEDY).trials
    return f"""# How much the demo's recipe learns

Made by `{setting.command}` on {setting.machine}; {versions}.
The data is in [learning.json](learning.json). World, base model, trainer and engine are those of `ratchet demo`, in one
process: no bus, no services, no gate, no canary.

Recipe: {numbers}. Every policy plays the same {tickets} held-out tickets twice: *greedy* (temperature 0) and *sampled*
(temperature 1). Held out means: combinations of facts about an order, and orders, that never occur in training. Rules
and kinds of tickets are the same in training.

*Rejection sampling* is the simplest rival: the same cycles, the same number of tickets played by its own newest policy,
the same adapter, learning rate and passes, but supervised fine-tuning on the tickets that were solved."""


def _success_table(report: Report, kinds: str) -> str:
    title = {OVERALL: "## All kinds of tickets", OF_MISJUDGED: "## The kinds that the clerk misjudged"}[kinds]
    note = (
        "Single values are seeds; ± is the 95 % Student interval of the mean over seeds. "
        f"One value by itself has a 95 % Wilson interval over tickets of at most ±{_widest(report, kinds):.3f}."
    )
    rows = ["| policy | greedy | each seed | sampled | each seed |", "|---|---|---|---|---|"]
    for name, method, cycle in _points(report):
        found = _at(report, method, cycle)
        cells = [f"{_over(found, mode, kinds)} | {_each(found, mode, kinds)}" for mode in (GREEDY, SAMPLED)]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([title, "", note, "", *rows])


def _kinds(report: Report) -> str:
    last = max(one.cycle for one in report.measured)
    kinds = sorted(next(iter(report.measured)).counts[GREEDY])
    columns = [(START, 0), (RLOO, last), (REJECTION, last)]
    head = " | ".join(f"{method}, greedy | sampled" for method, _ in columns)
    rows = [f"| kind | tickets | {head} |", "|---" * 8 + "|"]
    for kind in kinds:
        mark = " *" if kind in MISJUDGED else ""
        cells = [
            f"{OverSeeds([one.success(mode, kind).rate for one in _at(report, method, cycle)]).mean:.2f}"
            for method, cycle in columns
            for mode in (GREEDY, SAMPLED)
        ]
        tickets = _at(report, START, 0)[0].success(GREEDY, kind).trials
        rows.append(f"| {kind}{mark} | {tickets} | " + " | ".join(cells) + " |")
    title = f"## Kind by kind, after {last} cycles"
    return "\n".join([title, "", "Means over seeds; * marks the kinds that the clerk misjudged.", "", *rows])


def _claim(report: Report, least_rise: float, cycles: int) -> str:
    rises = rise_of_greedy(report.measured, cycles)
    over = OverSeeds(list(rises.values()))
    each = ", ".join(f"{rise:.3f}" for rise in rises.values())
    chance = over.chance_above(least_rise)
    told = "one seed says nothing about others" if chance is None else f"probability {chance:.4f}"
    return f"""## How safe the demo's claim is

`ratchet demo` claims that greedy success rises by at least {least_rise:g} from the first policy to the one that
serves at the end, after {cycles} cycles. Here it rose by {each} (seed by seed), {over.mean:.3f} on average with a
standard deviation of {over.spread:.3f}. Student's predictive distribution from these {len(rises)} seeds (normal runs,
unknown mean and spread; the noise of drawing tickets and the differences between seeds are both in the spread) gives
one more run a rise of at least {least_rise:g} with {told}. The Wilson intervals over tickets are then apart: half
the width of one is at most {_widest(report, OVERALL):.3f}."""


def rise_of_greedy(measured: Sequence[Measured], cycles: int) -> Mapping[int, float]:
    """By seed: greedy success after `cycles` cycles of RLOO, less that of the first policy."""
    first = {one.seed: one.success(GREEDY).rate for one in measured if one.method == START}
    return {
        one.seed: one.success(GREEDY).rate - first[one.seed]
        for one in measured
        if (one.method, one.cycle) == (RLOO, cycles)
    }


def _points(report: Report) -> Iterator[tuple[str, str, int]]:
    yield START, START, 0
    last = max(one.cycle for one in report.measured)
    for method in METHODS:
        for cycle in range(1, last + 1):
            yield f"{method}, cycle {cycle}", method, cycle


def _at(report: Report, method: str, cycle: int) -> list[Measured]:
    found = [one for one in report.measured if (one.method, one.cycle) == (method, cycle)]
    return sorted(found, key=lambda one: one.seed)


def _over(found: Sequence[Measured], mode: str, kinds: str) -> OverSeeds:
    return OverSeeds([one.success(mode, kinds).rate for one in found])


def _each(found: Sequence[Measured], mode: str, kinds: str) -> str:
    return " ".join(f"{one.success(mode, kinds).rate:.2f}" for one in found)


def _widest(report: Report, kinds: str) -> float:
    intervals = [one.success(mode, kinds).interval for one in report.measured for mode in (GREEDY, SAMPLED)]
    return max(high - low for low, high in intervals) / 2


def _count(measured: Proportion | None) -> Count:
    return Count(measured.successes, measured.trials) if measured else Count(0, 0)
