"""What few real preference pairs can carry: held-out results of `dpo` and `reward_model`, pair by pair; the table.

Pairs of a task share tries, so a task is what counts as one observation: intervals are over tasks. Needs no torch.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

DPO, REWARD_MODEL = "dpo", "reward_model"
SEEDS = (0, 1, 2)
DRAWS = 4000
"""Of tasks, for an interval."""


class HeldOutPair(msgspec.Struct, frozen=True):
    """One pair under a model that has not seen its task; scores are of the chosen side less the rejected one."""

    task: str
    after: float
    before: float | None = None
    """Under the reference, where there is one."""


class Fold(msgspec.Struct, frozen=True):
    """Some tasks, held out, and what a training on the others made of them."""

    pairs: Sequence[HeldOutPair]
    learnt_accuracy: float
    """Of the pairs that it learnt from, in its last train step."""
    auc: float | None = None
    """Of a reward model's held-out answers; rewards of different models do not compare."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """An algorithm with one seed, which draws model, folds and order anew."""

    algorithm: str
    seed: int
    recipe: Mapping[str, float]
    versions: Mapping[str, str]
    seconds: float
    folds: Sequence[Fold]


class Rule(msgspec.Struct, frozen=True):
    """A rule of thumb: how it judges every pair, by the task."""

    name: str
    verdicts: Sequence[tuple[str, float]]
    """(task, 1 right, 0 wrong, 0.5 a tie)"""


class Baselines(msgspec.Struct, frozen=True):
    """What needs no training."""

    source: str
    rules: Sequence[Rule]


class Pairs(msgspec.Struct, frozen=True):
    """All that was measured of pairs: what the file holds."""

    baselines: Baselines | None = None
    cells: Sequence[Cell] = ()


def read_pairs(file: Path) -> Pairs:
    """What was measured; nothing without a file."""
    return msgspec.json.decode(file.read_bytes(), type=Pairs) if file.is_file() else Pairs()


def write_pairs(file: Path, pairs: Pairs) -> None:
    """Write the file, a cell a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(pairs).decode().replace('{"algorithm"', '\n{"algorithm"')
    file.write_text(text + "\n")


def draw_pairs(file: Path) -> str | None:
    """The section of the report; None where nothing was measured."""
    measured = read_pairs(file)
    cells, known = measured.cells, measured.baselines
    if not cells or known is None:
        return None
    rows = ["| what | right | interval over tasks | seeds apart |", "|---|---|---|---|"]
    rows += [_row(rule.name, [list(rule.verdicts)]) for rule in known.rules]
    rows += [_row(name, [_verdicts(cell, judge) for cell in own]) for name, own, judge in _figures(cells)]
    pairs, tasks = len(known.rules[0].verdicts), len({task for task, _ in known.rules[0].verdicts})
    numbers = ", ".join(f"{name} {value:g}" for name, value in cells[0].recipe.items())
    learnt: dict[str, list[float]] = defaultdict(list)
    for cell in cells:
        learnt[cell.algorithm] += [fold.learnt_accuracy for fold in cell.folds]
    remembered = ", ".join(f"{name} {statistics.fmean(shares):.2f}" for name, shares in learnt.items())
    areas = [fold.auc for cell in cells for fold in cell.folds if fold.auc is not None]
    auc = f" The mean AUC of a reward model's folds is {statistics.fmean(areas):.2f}." if areas else ""
    minutes = sum(cell.seconds for cell in cells) / 60
    table = "\n".join(rows)
    return f"""## Few real pairs

{pairs} pairs of {tasks} tasks from {known.source}, derived as `ratchet preferences derive` does.
Whole tasks are held out, fold by fold, so that every pair is judged once by a model that has not seen its task; a seed
draws model, folds and order anew. The model is a random Llama that knows no language: it can learn the surface of what
won, and nothing about airlines. Recipe: {numbers}.

Of the pairs that were learnt from, so many are in the right order in the last train step: {remembered}.{auc}

{table}

*Right*: mean over the seeds of the share of held-out pairs. The interval draws tasks with replacement ({DRAWS} times,
all seeds of a task together): pairs of a task share tries, so there are {tasks} observations, not {pairs}. Where it
holds 0.5, nothing was shown. *Longer, as learnt*: the direction in which length decides, taken from the other tasks.
`python -m tests.bench.bench_preferences FILE` repeats it (here {minutes:.0f} minutes, beside other work)."""


def _figures(cells: Sequence[Cell]) -> Iterator[tuple[str, Sequence[Cell], Callable[[HeldOutPair], float]]]:
    """(name, cells, what a pair counts)"""
    dpo = [cell for cell in cells if cell.algorithm == DPO]
    scores = [cell for cell in cells if cell.algorithm == REWARD_MODEL]
    if dpo:
        yield "`dpo`: chosen side likelier, before", dpo, lambda pair: _share(pair.before or 0.0)
        yield "`dpo`: chosen side likelier, after", dpo, lambda pair: _share(pair.after)
        yield "`dpo`: win rate against the reference", dpo, lambda pair: _share(pair.after - (pair.before or 0.0))
    if scores:
        yield "`reward_model`: chosen side has the higher reward", scores, lambda pair: _share(pair.after)


def _share(margin: float) -> float:
    return 0.5 if margin == 0 else float(margin > 0)


def _verdicts(cell: Cell, judge: Callable[[HeldOutPair], float]) -> list[tuple[str, float]]:
    return [(pair.task, judge(pair)) for fold in cell.folds for pair in fold.pairs]


def _row(name: str, by_seed: Sequence[Sequence[tuple[str, float]]]) -> str:
    means = [statistics.fmean(right for _, right in verdicts) for verdicts in by_seed]
    low, high = task_interval([verdict for verdicts in by_seed for verdict in verdicts])
    apart = " ".join(f"{mean:.2f}" for mean in means) if len(means) > 1 else ""
    return f"| {name} | {statistics.fmean(means):.2f} | {low:.2f} to {high:.2f} | {apart} |"


def task_interval(verdicts: Sequence[tuple[str, float]]) -> tuple[float, float]:
    """The 95 % bootstrap interval of a share whose observations are tasks, not pairs."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, right in verdicts:
        by_task[task].append(right)
    tasks = [(math.fsum(by_task[task]), len(by_task[task])) for task in sorted(by_task)]
    draw = random.Random(0)
    shares: list[float] = []
    for _ in range(DRAWS):
        drawn = draw.choices(tasks, k=len(tasks))
        shares.append(math.fsum(right for right, _ in drawn) / sum(count for _, count in drawn))
    shares.sort()
    return shares[round(0.025 * DRAWS)], shares[round(0.975 * DRAWS) - 1]
