"""What few real preference pairs showed: held-out results of `dpo` and `reward_model`, pair by pair.

Pairs of a task share tries, so a task is what counts as one observation: intervals are over tasks. Needs no torch.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

DRAWS = 4000
"""Of tasks, for an interval."""


class HeldOutPair(msgspec.Struct, frozen=True):
    """One pair under a model that has not seen its task; scores are of the chosen side less the rejected one."""

    task: str
    after: float
    before: float | None = None
    """Under the reference, where there is one."""


class Fold(msgspec.Struct, frozen=True):
    """Some tasks, held out."""

    pairs: Sequence[HeldOutPair]


class Cell(msgspec.Struct, frozen=True):
    """An algorithm with one seed."""

    algorithm: str
    folds: Sequence[Fold]

    @property
    def gains(self) -> list[tuple[str, float]]:
        """(task, 1 where training moved the pair the right way, 0 where the wrong one, 0.5 where it did not)"""
        margins = [(pair.task, pair.after - (pair.before or 0.0)) for fold in self.folds for pair in fold.pairs]
        return [(task, 0.5 if margin == 0 else float(margin > 0)) for task, margin in margins]


class Rule(msgspec.Struct, frozen=True):
    """A rule of thumb: how it judges every pair, by the task."""

    name: str
    verdicts: Sequence[tuple[str, float]]


class Baselines(msgspec.Struct, frozen=True):
    """What needs no training."""

    source: str
    rules: Sequence[Rule]


class Pairs(msgspec.Struct, frozen=True):
    """What the file holds."""

    baselines: Baselines
    cells: Sequence[Cell]


NAMES = {
    "dpo": "`dpo`: win rate against the reference",
    "reward_model": "`reward_model`: chosen side has the higher reward",
}


def draw_pairs(file: Path) -> str:
    """The section of the report."""
    measured = msgspec.json.decode(file.read_bytes(), type=Pairs)
    rules = measured.baselines.rules
    rows = [_row(rule.name, [rule.verdicts]) for rule in rules]
    for algorithm, name in NAMES.items():
        rows.append(_row(name, [cell.gains for cell in measured.cells if cell.algorithm == algorithm]))
    tasks = {task for task, _ in rules[0].verdicts}
    return "\n".join([_HEAD.format(len(rules[0].verdicts), len(tasks), measured.baselines.source), *rows])


_HEAD = """## Few real pairs

{} pairs of {} tasks from {}, derived as `ratchet preferences derive` does,
with an earlier trainer ([pairs.json](learning/pairs.json)). Whole tasks are held out, fold by fold; a seed draws model,
folds and order anew. The model is a random Llama that knows no language. *Right* is the share of held-out pairs, in the
mean over the seeds; where its interval over tasks holds 0.5, nothing was shown.

| what | right | 95 % interval over tasks | by seed |
|---|---|---|---|"""


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
