"""What the learning report says: exams over seeds, two kinds of intervals, and how safe the demo's claim is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ratchet.demo.exams import Exam, Proportion
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.world import MISJUDGED

START, RLOO, REJECTION = "imitation of the clerk", "rloo", "rejection sampling"
METHODS = (RLOO, REJECTION)
OVERALL, OF_MISJUDGED = "all kinds", "misjudged kinds"
SAFE = 0.99
"""How often a run in which everything works must hold a claim."""
_SAFE_ERRORS = statistics.NormalDist().inv_cdf(SAFE)


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

    def lower_bound(self, probability: float) -> float | None:
        """What one more run exceeds with this probability: Student's predictive distribution of seeds.

        It takes runs as normal around an unknown mean with an unknown spread. None for a single seed.
        """
        count = len(self.values)
        if count < 2:
            return None
        return self.mean - student_quantile(probability, count - 1) * self.spread * math.sqrt(1 + 1 / count)

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


@dataclass(frozen=True, slots=True)
class ClaimedRise:
    """A rise of greedy success that a run promises."""

    run: str
    """The command."""
    kinds: str
    cycles: int
    tickets: int
    """Held-out tickets of its exams."""
    least: float


@dataclass(frozen=True, slots=True)
class Safety:
    """What the seeds say about a claimed rise."""

    over: OverSeeds
    """The rises."""
    safe: float
    """What a rise as true as that of the worst seed exceeds with probability `SAFE` in an exam of fresh tickets."""
    another_seed: float | None
    """What a run with one more seed exceeds with that probability, by the spread over seeds."""


def safety(report: Report, claim: ClaimedRise) -> Safety:
    """How large a rise is safe to claim."""
    pairs = _first_and_last(report.measured, claim.kinds, claim.cycles)
    rises = [last.rate - first.rate for first, last in pairs]
    first, last = pairs[rises.index(min(rises))]
    share = claim.tickets / next(iter(report.measured)).success(GREEDY).trials
    variance = sum(one.rate * (1 - one.rate) / (one.trials * share) for one in (first, last))
    over = OverSeeds(rises)
    return Safety(over, min(rises) - _SAFE_ERRORS * math.sqrt(variance), over.lower_bound(SAFE))


def draw_tables(report: Report, claims: Sequence[ClaimedRise]) -> str:
    """The whole report as Markdown."""
    parts = [_head(report), _means(report), _each_seed(report), _kinds(report), _claims(report, claims)]
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    setting, recipe = report.setting, report.recipe
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    numbers = ", ".join(f"{name} {value:g}" for name, value in recipe.items())
    exam = next(iter(report.measured))
    return f"""# How much the demo's recipe learns

Made by `{setting.command}` on {setting.machine}; {versions}.
The data is in [learning.json](learning.json). World, base model, trainer and engine are those of `ratchet demo`, in one
process: no bus, no services, no gate, no canary, and so no traffic of a canary to learn from.

Recipe: {numbers}. A seed draws everything anew: the base model, the clerk's log, the tickets that agents play, and
every draw of a token.

Every policy plays the same {exam.success(GREEDY).trials} held-out tickets twice: *greedy* (temperature 0) and *sampled*
(temperature 1); {exam.success(GREEDY, OF_MISJUDGED).trials} of them are of the five kinds that the clerk misjudged.
Held out means: combinations of facts about an order, and orders, that never occur in training. Rules and kinds of
tickets are the same in training.

*Rejection sampling* is the simplest rival: as many cycles with as many tickets played by its own newest policy, and
the same adapter, learning rate and passes, but supervised fine-tuning on the tickets that were solved."""


_COLUMNS = [(mode, kinds) for kinds in (OVERALL, OF_MISJUDGED) for mode in (GREEDY, SAMPLED)]
_HEADS = " | ".join(f"{mode}, {kinds}" for mode, kinds in _COLUMNS)


def _means(report: Report) -> str:
    rows = [f"| policy | {_HEADS} |", "|---" * 5 + "|"]
    for name, method, cycle in _points(report):
        exams = _at(report, method, cycle)
        means = (OverSeeds([one.success(mode, kinds).rate for one in exams]) for mode, kinds in _COLUMNS)
        seeds = f"{len(exams)} seed" + "s" * (len(exams) > 1)
        rows.append(f"| {name} ({seeds}) | " + " | ".join(map(str, means)) + " |")
    note = "± is the 95 % Student interval of the mean over seeds."
    return "\n".join(["## Means over seeds", "", note, "", *rows])


def _each_seed(report: Report) -> str:
    rows = [f"| policy | seed | {_HEADS} |", "|---" * 6 + "|"]
    for name, method, cycle in _points(report):
        for one in _at(report, method, cycle):
            cells = " | ".join(str(one.success(mode, kinds)) for mode, kinds in _COLUMNS)
            rows.append(f"| {name} | {one.seed} | {cells} |")
    note = "In brackets the 95 % Wilson interval over tickets."
    return "\n".join(["## Seed by seed", "", note, "", *rows])


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
    note = "Means over the seeds of each method; * marks the kinds that the clerk misjudged."
    return "\n".join([title, "", note, "", *rows])


def _claims(report: Report, claims: Sequence[ClaimedRise]) -> str:
    rows = [
        "| run | kinds | cycles | tickets | rise by seed | mean, deviation | safe | another seed | claimed |",
        "|---" * 9 + "|",
    ]
    for claim in claims:
        safe = safety(report, claim)
        each = " ".join(f"{rise:.2f}" for rise in safe.over.values)
        bounds = f"{safe.safe:.3f} | {_bound(safe.another_seed)}"
        rows.append(
            f"| {claim.run} | {claim.kinds} | {claim.cycles} | {claim.tickets} | {each} | "
            f"{safe.over.mean:.3f}, {safe.over.spread:.3f} | {bounds} | {claim.least:g} |"
        )
    return "\n".join([_ARGUMENT, "", *rows])


_ARGUMENT = f"""## What the demo claims, and how safe that is

`ratchet demo` claims that greedy success rises by at least so much from the first policy to the one that serves at
the end; the claim may not fail by the chance of an exam where the policy did learn.

*Safe*: the seed that rose least is taken for the truth, and both exams for fresh draws of that many tickets; less
{_SAFE_ERRORS:.2f} standard errors of the difference, {SAFE:.0%} of such runs show more. No more than this is claimed.

*Another seed*: what a run with one more seed exceeds with probability {SAFE:g}, by Student's predictive distribution
(runs normal around an unknown mean with an unknown spread). It says what these few seeds show about others, and with
few of them that is little. A run of `ratchet demo` always has seed 0: it differs from the next in timing alone."""


def _bound(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _first_and_last(measured: Sequence[Measured], kinds: str, cycles: int) -> list[tuple[Proportion, Proportion]]:
    """Greedy success before and after that many cycles of RLOO, seed by seed."""
    first = {one.seed: one.success(GREEDY, kinds) for one in measured if one.method == START}
    last = [one for one in measured if (one.method, one.cycle) == (RLOO, cycles)]
    return [(first[one.seed], one.success(GREEDY, kinds)) for one in sorted(last, key=lambda one: one.seed)]


def _points(report: Report) -> Iterator[tuple[str, str, int]]:
    yield START, START, 0
    last = max(one.cycle for one in report.measured)
    for method in METHODS:
        for cycle in range(1, last + 1):
            yield f"{method}, cycle {cycle}", method, cycle


def _at(report: Report, method: str, cycle: int) -> list[Measured]:
    measured = [one for one in report.measured if (one.method, one.cycle) == (method, cycle)]
    return sorted(measured, key=lambda one: one.seed)


def _count(measured: Proportion | None) -> Count:
    return Count(measured.successes, measured.trials) if measured else Count(0, 0)
