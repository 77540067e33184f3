"""What the learning report says: exams over seeds, two kinds of intervals, and how safe the demo's claim is."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ratchet.core.rules.defaults import DEFAULTS
from ratchet.core.rules.intervals import mean_interval
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.world import MISJUDGED
from tools.learning.cells import (
    ALGORITHMS,
    OF_MISJUDGED,
    OVERALL,
    OWN,
    Experiment,
    Measured,
    Result,
    missing_cells,
)

SAFE = 0.99
"""How often a run in which everything works must hold a claim."""
_SAFE_ERRORS = statistics.NormalDist().inv_cdf(SAFE)
START = "before"


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
        """Of the 95 % interval of the mean; None where it has none (`mean_interval`)."""
        interval = mean_interval(self.mean, self.spread**2, len(self.values))
        return None if interval is None else (interval[1] - interval[0]) / 2

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


@cache
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
    experiment: Experiment
    variant: str
    """What it plays, as that experiment measures it over seeds."""
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


def safety(results: Sequence[Result], claim: ClaimedRise) -> Safety:
    """How large a rise is safe to claim."""
    cells = _reached(cells_of(results, claim.experiment, claim.variant), claim.cycles)
    pairs = [
        (cell.measured[0].success(GREEDY, claim.kinds), cell.measured[claim.cycles].success(GREEDY, claim.kinds))
        for cell in cells
    ]
    rises = [last.rate - first.rate for first, last in pairs]
    first, last = pairs[rises.index(min(rises))]
    share = claim.tickets / cells[0].measured[0].success(GREEDY).trials
    variance = sum(solved.rate * (1 - solved.rate) / (solved.trials * share) for solved in (first, last))
    over = OverSeeds(rises)
    return Safety(over, min(rises) - _SAFE_ERRORS * math.sqrt(variance), over.lower_bound(SAFE))


def draw_tables(results: Sequence[Result], claims: Sequence[ClaimedRise]) -> str:
    """The whole report as Markdown."""
    parts = [_head(results)]
    for experiment in OWN:
        if any(result.experiment == experiment.name for result in results):
            parts += [f"## {experiment.title}", experiment.asks, _means(results, experiment)]
            parts += _notes(results, experiment)
    parts += [_kinds(results), _use(), _claims(results, claims), _cells(results)]
    return "\n\n".join(parts) + "\n"


def _head(results: Sequence[Result]) -> str:
    newest = results[-1]
    numbers = ", ".join(f"{name} {value:g}" for name, value in newest.recipe.items())
    exam = newest.measured[0]
    tickets, misjudged = exam.success(GREEDY).trials, exam.success(GREEDY, OF_MISJUDGED).trials
    return f"""# What Ratchet's algorithms learn

Made by `make learning` from [cells.jsonl](learning/cells.jsonl), a line a cell: one variant with one seed. World,
base model, trainer and engine are those of `ratchet demo`, in one process: no bus, no services, no gate, no canary, and
so no traffic of a canary to learn from. The model is random at first and has 0.7 million parameters: these figures
compare algorithms with each other, and say nothing about a language model.

Recipe: {numbers}. A seed draws everything anew: the base model, the clerk's log, the tickets that agents play, and
every draw of a token.

Every policy plays the same {tickets} held-out tickets twice: *greedy* (temperature 0) and *sampled* (temperature 1);
{misjudged} of them are of the five kinds that the clerk misjudged, which a policy that imitates him seldom solves. Held
out means: combinations of facts about an order, and orders, that never occur in training. Rules and kinds of tickets
are the same in training.

± is the 95 % Student interval of the mean over seeds; seeds that are all equal have none. *Gain* is greedy success less
that of the same seed before the first cycle; where its interval holds 0, nothing was shown."""


_COLUMNS = [(mode, kinds) for kinds in (OVERALL, OF_MISJUDGED) for mode in (GREEDY, SAMPLED)]
_HEADS = " | ".join(f"{mode}, {kinds}" for mode, kinds in _COLUMNS)


def _means(results: Sequence[Result], experiment: Experiment) -> str:
    heads = ["policy", "seeds", _HEADS, "gain, greedy", "gain, sampled", *experiment.figures.values()]
    rows = [f"| {' | '.join(heads)} |", "|---" * (len(heads) + len(_COLUMNS) - 1) + "|"]
    for name, cells, cycle in points(results, experiment):
        exams = [cell.measured[cycle] for cell in cells]
        means = [str(OverSeeds([exam.success(mode, kinds).rate for exam in exams])) for mode, kinds in _COLUMNS]
        gains = [_gain(cells, cycle, mode) if cycle else "" for mode in (GREEDY, SAMPLED)]
        figures = [_figure(exams, figure) for figure in experiment.figures]
        rows.append(f"| {' | '.join([name, str(len(cells)), *means, *gains, *figures])} |")
    return "\n".join(rows)


def _figure(exams: Sequence[Measured], name: str) -> str:
    """Of those whose training measured it."""
    values = [exam.figures[name] for exam in exams if name in exam.figures]
    return str(OverSeeds(values)) if values else ""


def _gain(cells: Sequence[Result], cycle: int, mode: str) -> str:
    over = OverSeeds([cell.measured[cycle].success(mode).rate - cell.measured[0].success(mode).rate for cell in cells])
    return ("+" if over.mean >= 0 else "") + str(over)


def _notes(results: Sequence[Result], experiment: Experiment) -> Iterator[str]:
    """What compares with variants of one seed, and what was refused, with its reason."""
    if len({len(variant.seeds) for variant in experiment.variants}) > 1:
        firsts = {variant.name: cells_of(results, experiment, variant.name)[:1] for variant in experiment.variants}
        gains = [f"{name} {_gain(cells, experiment.cycles, GREEDY)}" for name, cells in firsts.items() if cells]
        yield f"Greedy gain of seed 0 alone: {', '.join(gains)}."
    refused = [result for result in results if result.experiment == experiment.name and result.refused is not None]
    if refused:
        yield "\n".join(f"- refused: {result.variant}, seed {result.seed}: {result.refused}" for result in refused)


def _kinds(results: Sequence[Result]) -> str:
    """Rare cases apart: the newest policy of each algorithm, kind by kind."""
    columns = [(START, cells_of(results, ALGORITHMS), 0)]
    last = ALGORITHMS.cycles
    columns += [(variant.name, cells_of(results, ALGORITHMS, variant.name), last) for variant in ALGORITHMS.variants]
    shown = [(name, kept, cycle) for name, cells, cycle in columns if (kept := _reached(cells, cycle))]
    first = results[0].measured[0]
    rows = ["| kind | tickets | " + " | ".join(name for name, _, _ in shown) + " |", "|---" * (2 + len(shown)) + "|"]
    for kind in sorted(first.counts[GREEDY]):
        mark = " *" if kind in MISJUDGED else ""
        cells = [
            " / ".join(_mean_of([cell.measured[cycle] for cell in kept], mode, kind) for mode in (GREEDY, SAMPLED))
            for _, kept, cycle in shown
        ]
        rows.append(f"| {kind}{mark} | {first.success(GREEDY, kind).trials} | " + " | ".join(cells) + " |")
    note = "Greedy / sampled, means over the seeds; * marks the kinds that the clerk misjudged."
    return "\n".join([f"## Kind by kind, after {last} cycles of every algorithm", "", note, "", *rows])


def _mean_of(exams: Sequence[Measured], mode: str, kind: str) -> str:
    return f"{OverSeeds([exam.success(mode, kind).rate for exam in exams]).mean:.2f}"


def _use() -> str:
    """What a job trains with where it names nothing, and what that rests on."""
    rows = ["| data, at least | algorithm | learning rate | batch | passes |", "|---" * 5 + "|"]
    measured = ["| algorithm | model | rate | batch | passes | rank | figures |", "|---" * 7 + "|"]
    for name, row in DEFAULTS.items():
        least = ", ".join(f"{label.replace('_', ' ')} {value:g}" for label, value in row.least.items())
        rates = f"{row.learning_rate.adapter:g}; all weights {row.learning_rate.full:g}"
        rows.append(f"| {least} | {name} | {rates} | {row.batch_size} | {row.epochs} |")
        for run in row.measured:
            had = f"{run.recipe.learning_rate:g} | {run.recipe.batch_size} | {run.recipe.epochs} | {run.recipe.rank}"
            figures = f"[{run.figures}](#{run.source.partition('#')[2]})"
            measured.append(f"| {name} | {run.size} | {had} | {figures} |")
    return "\n".join(["## What to use when", "", _USE, "", *rows, "", _MEASURED, "", *measured])


_USE = """`ratchet plan` proposes the first row whose data a role has, of those that name some; a job that names nothing
trains with the rest of its row, an adapter with rank 16. rloo's rate, batch and pass are those that were measured on
135 million parameters; all others are judgement, and so are the least amounts."""
_MEASURED = """The order of the rows, and rloo's recipe, rest on these figures, by the size of the model. At .7 million
parameters rejection sampling (`sft` on what was solved) leads rloo; at 135 million no lead was shown and rejection
sampling costs less, so it comes first at any size. Larger models were not measured: theirs are the rates of the
largest that was."""


def _cells(results: Sequence[Result]) -> str:
    missing = [
        f"{name}, {'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"
        for name, seeds in missing_cells(results, OWN).items()
    ]
    longest = max(result.seconds for result in results) / 60
    learners = ", ".join(
        f"`{digest}` ({count})" for digest, count in Counter(result.learner for result in results).items()
    )
    lines = [
        "## Cells",
        "",
        f"{len(results)} cells were measured; the longest took {longest:.0f} minutes. Each line names its versions.",
        f"Digest of the trainer's files at the time, and how many cells it made: {learners}.",
    ]
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    return "\n".join(lines)


def _claims(results: Sequence[Result], claims: Sequence[ClaimedRise]) -> str:
    rows = [
        "| run | kinds | cycles | tickets | rise by seed | mean, deviation | safe | another seed | claimed |",
        "|---" * 9 + "|",
    ]
    for claim in claims:
        safe = safety(results, claim)
        each = " ".join(f"{rise:.2f}" for rise in safe.over.values)
        bounds = f"{safe.safe:.3f} | {_bound(safe.another_seed)}"
        rows.append(
            f"| {claim.run} | {claim.kinds} | {claim.cycles} | {claim.tickets} | {each} | "
            f"{safe.over.mean:.3f}, {safe.over.spread:.3f} | {bounds} | {claim.least:g} |"
        )
    return "\n".join([_ARGUMENT, "", *rows])


_ARGUMENT = f"""## What the demo claims, and how safe that is

A demo claims that greedy success rises by at least so much from the first policy to the one that serves at the end; the
claim may not fail by the chance of an exam where the policy did learn.

*Safe*: the seed that rose least is taken for the truth, and both exams for fresh draws of that many tickets; less
{_SAFE_ERRORS:.2f} standard errors of the difference, {SAFE:.0%} of such runs show more. No more than this is claimed.

*Another seed*: what a run with one more seed exceeds with probability {SAFE:g}, by Student's predictive distribution
(runs normal around an unknown mean with an unknown spread). It says what these few seeds show about others, and with
few of them that is little. A run of a demo always has seed 0: it differs from the next in timing alone."""


def _bound(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def cells_of(results: Sequence[Result], experiment: Experiment, variant: str | None = None) -> list[Result]:
    """Cells of a variant, or one of each seed, by seed."""
    chosen: dict[int, Result] = {}
    for result in results:
        if result.experiment == experiment.name and variant in (None, result.variant):
            chosen.setdefault(result.seed, result)
    return [chosen[seed] for seed in sorted(chosen)]


def _reached(cells: Sequence[Result], cycle: int) -> list[Result]:
    return [cell for cell in cells if len(cell.measured) > cycle and cell.measured[cycle].examined]


def points(results: Sequence[Result], experiment: Experiment) -> Iterator[tuple[str, list[Result], int]]:
    """(name, cells that came so far, cycle) of every policy of an experiment."""
    first = cells_of(results, experiment)
    if first:
        yield START, first, 0
    for variant in experiment.variants:
        for cycle in range(1, experiment.cycles + 1):
            cells = _reached(cells_of(results, experiment, variant.name), cycle)
            if cells:
                yield variant.name + (f", cycle {cycle}" if experiment.cycles > 1 else ""), cells, cycle
