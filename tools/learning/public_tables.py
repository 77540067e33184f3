"""What the learning report says of public tasks: every policy's exam beside the start, with what its learning took.

Exams of one world have the same tasks, so a gain is of pairs: its interval is over tasks for one seed, over seeds for
several. Needs no torch.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ratchet.local.demo.exams import Z_95
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tools.learning.cells import PUBLIC, Cell, Experiment, Measured, Result, all_cells, is_public
from tools.learning.tables import OverSeeds, cells_of, points

MODES = (GREEDY, SAMPLED)
UNTRAINED, IMITATED = "SmolLM2", "after imitation"
COUNTS = {
    "played": "trajectories",
    "sampled_tokens": "tokens sampled",
    "samples": "samples learnt",
    "step_tokens": "tokens in train steps",
}
"""What the cycles up to a policy took, heading by figure."""
SHARES = {"start_ess": "effective sample size"}


@dataclass(frozen=True, slots=True)
class Gain:
    """How much more an exam solves than another of the same tasks, with the 95 % interval."""

    mean: float
    half_width: float

    @classmethod
    def over_tasks(cls, before: str, after: str) -> Gain:
        """Of one seed: outcomes of the same tasks, in the same order."""
        apart = [int(new) - int(old) for old, new in zip(before, after, strict=True)]
        spread = statistics.stdev(apart) if len(apart) > 1 else 0.0
        return cls(statistics.fmean(apart), Z_95 * spread / math.sqrt(len(apart)))

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> Gain:
        """Of at least two seeds."""
        over = OverSeeds(values)
        return cls(over.mean, over.half_width or 0.0)

    @property
    def verdict(self) -> str:
        """What the interval shows."""
        if self.mean - self.half_width > 0:
            return "better"
        return "worse" if self.mean + self.half_width < 0 else "not shown"

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half_width:.2f}"


def draw_public(results: Sequence[Result]) -> str:
    """The sections, as Markdown. What was not measured is named."""
    parts = [_head(results)]
    for experiment in PUBLIC:
        parts += [f"### {experiment.title}", experiment.asks, *_section(results, experiment)]
    return "\n\n".join([*parts, _cells(results)])


def _head(results: Sequence[Result]) -> str:
    drawn = f"{len(results)} cells are drawn here." if results else "No cell was measured."
    return f"""## A real model on public tasks

Made by `make bench-learning` from the files in [learning](learning). The model is SmolLM2-135M-Instruct (Apache-2.0,
from its 4-bit GGUF); trainer and engine are the product's, in one process, in bfloat16. The first policy imitates a few
demonstrations of training tasks with an adapter; then each cycle plays training tasks with the newest policy and learns
from what was played. Held-out tasks are the same for all seeds; a seed draws demonstrations, training tasks, their
order and every token. Rejection sampling, which is supervised fine-tuning on the solved tries, stands beside RLOO with
as many tries. Nothing was tuned on held-out tasks. {drawn}

One seed: in brackets the 95 % Wilson interval over tasks. Several: mean ± 95 % Student interval over seeds. *Gain* is
over the policy after imitation on the same tasks; its interval is of pairs over tasks for one seed, over seeds for
several. *Better* and *worse*: the interval of the greedy gain does not hold 0; otherwise nothing was shown.
Counts are sums over the cycles so far, in the mean over seeds."""


def _section(results: Sequence[Result], experiment: Experiment) -> Iterator[str]:
    own = [result for result in results if result.experiment == experiment.name]
    if not own:
        yield "Not measured."
        return
    numbers = ", ".join(f"{name} {value:g}" for name, value in own[0].recipe.items())
    yield f"Recipe: {numbers}; {experiment.trajectories} trajectories a cycle."
    yield _table(results, experiment)
    yield _verdicts(results, experiment)
    yield from ("- refused: " + f"{one.variant}, seed {one.seed}: {one.refused}" for one in own if one.refused)


def _table(results: Sequence[Result], experiment: Experiment) -> str:
    kinds = sorted(cells_of(results, experiment)[0].measured[0].counts[GREEDY])
    columns = [(mode, None) for mode in MODES]
    columns += [(mode, kind) for kind in kinds for mode in MODES if len(kinds) > 1]
    heads = ["policy", "seeds", *(f"{mode}, {kind or 'all'}" for mode, kind in columns)]
    heads += [*(f"gain, {mode}" for mode in MODES), *COUNTS.values(), *SHARES.values()]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, exams, gains, cells, cycle in _lines(results, experiment):
        solved = [_solved(exams, mode, kind) for mode, kind in columns]
        took = [_took(cells, cycle, figure) for figure in COUNTS]
        shares = [_share(exams, figure) for figure in SHARES]
        rows.append(f"| {' | '.join([name, str(len(exams)), *solved, *gains, *took, *shares])} |")
    return "\n".join(rows)


def _lines(
    results: Sequence[Result], experiment: Experiment
) -> Iterator[tuple[str, list[Measured], list[str], list[Result], int]]:
    """(name, exams, gains, cells, cycle) of every policy."""
    base = next(
        (result.base for result in results if result.experiment == experiment.name and result.base is not None), None
    )
    if base is not None:
        yield UNTRAINED, [base], ["", ""], [], 0
    for name, cells, cycle in points(results, experiment):
        exams = [cell.measured[cycle] for cell in cells]
        gains = [str(gain_of(cells, cycle, mode)) if cycle else "" for mode in MODES]
        yield (name if cycle else IMITATED), exams, gains, cells, cycle


def gain_of(cells: Sequence[Result], cycle: int, mode: str) -> Gain:
    """Of a variant's cells over their own start."""
    if len(cells) == 1:
        first, last = (cells[0].measured[place].solved[mode] for place in (0, cycle))
        return Gain.over_tasks(first, last)
    return Gain.over_seeds(
        [cell.measured[cycle].success(mode).rate - cell.measured[0].success(mode).rate for cell in cells]
    )


def _solved(exams: Sequence[Measured], mode: str, kind: str | None) -> str:
    shares = [exam.success(mode, kind) if kind else exam.success(mode) for exam in exams]
    return str(shares[0]) if len(shares) == 1 else str(OverSeeds([share.rate for share in shares]))


def _took(cells: Sequence[Result], cycle: int, figure: str) -> str:
    """Up to this cycle; of trainings alone for the policy after imitation."""
    places = range(1, cycle + 1) if cycle else range(1)
    sums = [sum(cell.measured[place].figures.get(figure, 0) for place in places) for cell in cells]
    return f"{statistics.fmean(sums):,.0f}" if sums and any(sums) else ""


def _share(exams: Sequence[Measured], figure: str) -> str:
    values = [exam.figures[figure] for exam in exams if figure in exam.figures]
    return str(OverSeeds(values)) if values else ""


def _verdicts(results: Sequence[Result], experiment: Experiment) -> str:
    """A line for each variant's last policy."""
    lines = []
    for variant in experiment.variants:
        cells = [one for one in cells_of(results, experiment, variant.name) if len(one.measured) > experiment.cycles]
        if cells:
            gain = gain_of(cells, experiment.cycles, GREEDY)
            minutes = statistics.fmean(cell.seconds for cell in cells) / 60
            load = statistics.fmean(cell.load or 0 for cell in cells)
            count = f"{len(cells)} seed" + ("s" if len(cells) > 1 else "")
            lines.append(
                f"- {variant.name}: {gain.verdict}, greedy {gain} ({count}; {minutes:.0f} minutes, load {load:.1f})"
            )
    return "\n".join(lines)


def _cells(results: Sequence[Result]) -> str:
    there = {Cell(result.experiment, result.variant, result.seed) for result in results}
    missing = [str(cell) for cell in all_cells() if is_public(cell) and cell not in there]
    learners = ", ".join(
        f"`{digest}` ({count})" for digest, count in Counter(result.learner for result in results).items()
    )
    lines = [f"Not measured, {len(missing)}: {', '.join(missing)}."] if missing else []
    lines += [f"Digest of the trainer's files at the time, and how many cells it made: {learners}."] if learners else []
    lines += [_versions(results[-1].versions)] if results else []
    return "\n".join(["### Cells on public tasks", "", *lines])


def _versions(versions: Mapping[str, str]) -> str:
    return "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "."
