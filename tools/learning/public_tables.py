"""What the learning report says of public tasks: every policy's exam beside the start, with what its learning took.

Exams of one world have the same tasks, so a gain is of pairs. Needs no torch.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ratchet.core.rules.intervals import paired_difference
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import (
    IMITATION,
    PUBLIC,
    REJECTION,
    RLOO,
    Experiment,
    Measured,
    Result,
    missing_cells,
)
from tools.learning.tables import cells_of, points

MODES = (GREEDY, SAMPLED)
UNTRAINED, IMITATED = "SmolLM2", "after imitation"
COUNTS = {
    "played": "tries",
    "sampled_tokens": "tokens sampled",
    "samples": "rows learnt",
    "step_tokens": "tokens in train steps",
    "stopped_early": "stops",
}
"""What the cycles up to a policy took, heading by figure."""
REPLICATES = 4000
CURVE = 6
"""Columns of it at most."""


@dataclass(frozen=True)
class Gain:
    """How much more of the same tasks is solved afterwards, by seed and task: 1, 0 or -1 each."""

    apart: Sequence[Sequence[int]]

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]]) -> Gain:
        """Outcomes before and afterwards, of the same tasks in the same order: a pair for each seed."""
        return cls([[int(new) - int(old) for old, new in zip(*pair, strict=True)] for pair in pairs])

    @property
    def by_seed(self) -> list[float]:
        """Its means over tasks."""
        return [statistics.fmean(each) for each in self.apart]

    @property
    def mean(self) -> float:
        """Over seeds and tasks."""
        return statistics.fmean(self.by_seed)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """95 %, by the bootstrap: seeds are drawn again, and so are the tasks, which all seeds have in common.

        Where every task has the same gain, a bootstrap draws nothing else: there it is that of `paired_difference`.
        """
        if len({change for each in self.apart for change in each}) == 1:
            return paired_difference([0.0] * len(self.apart[0]), self.apart[0])
        apart, draw = np.array(self.apart, dtype=float), np.random.default_rng(0)
        seeds, tasks = apart.shape
        drawn_tasks = draw.multinomial(tasks, np.full(tasks, 1 / tasks), REPLICATES)
        drawn_seeds = draw.multinomial(seeds, np.full(seeds, 1 / seeds), REPLICATES)
        means = ((drawn_tasks @ apart.T / tasks) * drawn_seeds).sum(1) / seeds
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    @property
    def verdict(self) -> str:
        """What the interval shows."""
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "not shown"

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def draw_public(results: Sequence[Result]) -> str:
    """The sections, as Markdown. What was not measured is named."""
    parts = [_head(results)]
    for experiment in PUBLIC:
        if own := [result for result in results if result.experiment == experiment.name]:
            parts += [f"### {experiment.title}", experiment.asks, *_section(own, experiment)]
    return "\n\n".join([*parts, *_planned(results), _cells(results)])


EARLIER = {
    "bfcl": "BFCL, calls and refusals mixed; cycles of 160 tries",
    "single-tries": "48 tries at the same tasks",
    "retail": "tau-trait retail, one action; cycles of 160 tries",
}
"""What was measured, by names of experiments that are no more or have changed."""


def draw_earlier(results: Sequence[Result]) -> str:
    """What earlier recipes came to, as Markdown."""
    heads = ["tasks", "policy", "seeds", "cycles", *(f"{mode}, {what}" for mode in MODES for what in ("start", "gain"))]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.experiment, result.variant), []).append(result)
    for (experiment, variant), cells in groups.items():
        cycle = min(len(cell.measured) for cell in cells) - 1
        figures = [
            f"{_solved([cell.measured[0] for cell in cells], mode)} | {gain} *{gain.verdict}*"
            for mode in MODES
            for gain in [gain_of(cells, cycle, mode)]
        ]
        rows.append(f"| {' | '.join([EARLIER[experiment], variant, str(len(cells)), str(cycle), *figures])} |")
    return "\n".join([_EARLIER_HEAD, "", *rows])


_EARLIER_HEAD = """### Earlier recipes

What RL began with on public tasks, kept in [earlier.jsonl](learning/earlier.jsonl), each with the recipe of that
time. Tasks and recipes of the sections above replaced them."""


def _head(results: Sequence[Result]) -> str:
    drawn = f"{len(results)} cells are drawn here." if results else "No cell was measured."
    return f"""## A real model on public tasks

Made by `make bench-learning` from the files in [learning](learning). The model is SmolLM2-135M-Instruct (Apache-2.0,
from its 4-bit GGUF); trainer and engine are the product's, in one process. The first policy imitates a few
demonstrations of training tasks with an adapter; then each cycle plays training tasks with the newest policy and learns
from what was played. Held-out tasks are the same for all seeds, and no training task is among them; where questions are
drawn without end the exam is drawn first, and no training task is the twin of one of it (3 + 4 and 4 + 3). A seed draws
demonstrations, training tasks, their order and every token. Rejection sampling, which is supervised fine-tuning on the
solved tries, stands beside RLOO with as many tries; `{IMITATION}` imitates as many right answers, which the other two
never see. Nothing was tuned on held-out tasks. Numbers have 16 bits where a short measurement of the processor, at the
start, shows that it multiplies clearly faster in bfloat16, and else 32. {drawn}

*Gain* is over the policy after imitation on the same tasks. In brackets the 95 % interval of a bootstrap that draws
seeds and held-out tasks again ({REPLICATES:,} times); of one seed it is over tasks alone, and where no task changed, or
all did, it is Bonett's and Price's (2012). *Better* and *worse*: the interval does not hold 0; otherwise nothing was
shown. Counts are sums over the cycles, in the mean over seeds; *stops* are trainings that a health check ended."""


def _section(results: Sequence[Result], experiment: Experiment) -> Iterator[str]:
    yield f"Recipe: {_numbers(results)}; {experiment.cycles} cycles of {experiment.trajectories} tries."
    yield _table(results, experiment)
    yield "\n".join(_verdicts(results, experiment))
    if experiment.examined > 1:
        yield _curve(results, experiment)
    yield from (
        "- refused: " + f"{result.variant}, seed {result.seed}: {result.refused}"
        for result in results
        if result.refused
    )


def _numbers(results: Sequence[Result]) -> str:
    """Of the recipe; all that the cells had, where they differ."""
    values = {name: sorted({result.recipe[name] for result in results}) for name in results[0].recipe}
    return ", ".join(f"{name} {' or '.join(f'{value:g}' for value in each)}" for name, each in values.items())


def _table(results: Sequence[Result], experiment: Experiment) -> str:
    heads = ["policy", "seeds", *MODES, *(f"gain, {mode}" for mode in MODES), *COUNTS.values()]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, exams, gains, cells, cycle in _lines(results, experiment):
        solved = [_solved(exams, mode) for mode in MODES]
        took = [_took(cells, cycle, figure) for figure in COUNTS]
        rows.append(f"| {' | '.join([name, str(len(exams)), *solved, *gains, *took])} |")
    return "\n".join(rows)


def _lines(
    results: Sequence[Result], experiment: Experiment
) -> Iterator[tuple[str, list[Measured], list[str], list[Result], int]]:
    """(name, exams, gains, cells, cycle): the model, the start, and the last policy of every variant."""
    base = next((result.base for result in results if result.base is not None), None)
    if base is not None:
        yield UNTRAINED, [base], ["", ""], [], 0
    for name, cells, cycle in points(results, experiment):
        if cycle in (0, experiment.cycles):
            exams = [cell.measured[cycle] for cell in cells]
            gains = [str(gain_of(cells, cycle, mode)) if cycle else "" for mode in MODES]
            yield (name if cycle else IMITATED), exams, gains, cells, cycle


def gain_of(cells: Sequence[Result], cycle: int, mode: str) -> Gain:
    """Of a variant's cells over their own start."""
    return Gain.of([(cell.measured[0].solved[mode], cell.measured[cycle].solved[mode]) for cell in cells])


def _solved(exams: Sequence[Measured], mode: str) -> str:
    shares = [exam.success(mode) for exam in exams]
    return str(shares[0]) if len(shares) == 1 else f"{statistics.fmean(share.rate for share in shares):.2f}"


def _took(cells: Sequence[Result], cycle: int, figure: str) -> str:
    """Up to this cycle; of trainings alone for the policy after imitation."""
    places = range(1, cycle + 1) if cycle else range(1)
    sums = [sum(cell.measured[place].figures.get(figure, 0) for place in places) for cell in cells]
    return f"{statistics.fmean(sums):,.0f}" if any(sums) else ""


def _finished(results: Sequence[Result], experiment: Experiment, variant: str) -> list[Result]:
    return [cell for cell in cells_of(results, experiment, variant) if len(cell.measured) > experiment.cycles]


def _verdicts(results: Sequence[Result], experiment: Experiment) -> Iterator[str]:
    """A line for each variant's last policy, and for RLOO beside rejection sampling."""
    for variant in experiment.variants:
        if cells := _finished(results, experiment, variant.name):
            shown = "; ".join(_shown(mode, gain_of(cells, experiment.cycles, mode)) for mode in MODES)
            yield f"- {variant.name}: {shown}. {_minutes(cells)}"
    rejection = {cell.seed: cell.measured[-1].solved for cell in _finished(results, experiment, REJECTION)}
    rloo = {cell.seed: cell.measured[-1].solved for cell in _finished(results, experiment, RLOO)}
    if both := sorted({*rejection} & {*rloo}):
        apart = [(mode, Gain.of([(rejection[seed][mode], rloo[seed][mode]) for seed in both])) for mode in MODES]
        yield f"- {RLOO} beside {REJECTION}: {'; '.join(_shown(*each) for each in apart)}."


def _shown(mode: str, gain: Gain) -> str:
    seeds = ", ".join(f"{each:+.3f}" for each in gain.by_seed)
    return f"{mode} *{gain.verdict}*, {gain}" + (f", by seed {seeds}" if len(gain.by_seed) > 1 else "")


def _minutes(cells: Sequence[Result]) -> str:
    """What a cell took."""
    took = [cell.processor_s for cell in cells if cell.processor_s is not None]
    if len(took) == len(cells):
        return f"A cell: {statistics.fmean(took) / 60:.1f} minutes of processor time."
    return f"A cell: {statistics.fmean(cell.seconds for cell in cells) / 60:.1f} minutes."


def _curve(results: Sequence[Result], experiment: Experiment) -> str:
    """Success of the tries on training tasks, in parts of the cycles."""
    part = max(1, experiment.cycles // CURVE)
    starts = range(1, experiment.cycles + 1, part)
    heads = [f"{start} to {min(start + part - 1, experiment.cycles)}" for start in starts]
    rows = [f"| tries of cycles | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for variant in experiment.variants:
        cells = _finished(results, experiment, variant.name)
        parts = [
            [
                measured.figures["played_success"]
                for cell in cells
                for measured in cell.measured[start : start + part]
                if "played_success" in measured.figures
            ]
            for start in starts
        ]
        if all(parts):
            rows.append(f"| {variant.name} | {' | '.join(f'{statistics.fmean(each):.2f}' for each in parts)} |")
    return "\n".join(rows)


def _planned(results: Sequence[Result]) -> Iterator[str]:
    """Experiments of which cells are missing."""
    rows = [
        f"| {experiment.title} | {experiment.asks} |"
        f" {sum(map(len, missing.values()))} of {sum(len(v.seeds) for v in experiment.variants)} |"
        for experiment in PUBLIC
        if (missing := missing_cells(results, [experiment]))
    ]
    if rows:
        yield "### Planned"
        yield "\n".join(["| tasks | what is asked | cells not measured |", "|---|---|---|", *rows])


def _cells(results: Sequence[Result]) -> str:
    learners = ", ".join(
        f"`{digest}` ({count})" for digest, count in Counter(result.learner for result in results).items()
    )
    lines = [f"Digest of the trainer's files at the time, and how many cells it made: {learners}."] if learners else []
    lines += [_versions(results[-1].versions)] if results else []
    return "\n".join(["### Cells on public tasks", "", *lines])


def _versions(versions: Mapping[str, str]) -> str:
    return "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
