"""How much the demo's recipe learns, over seeds and beside a baseline: `python -m tools.learning.report`.

For every seed: a base model, the policy that imitates the biased clerk, then cycles in which the newest policy plays
training tickets and learns from them by RLOO as in `ratchet demo`; for the first seeds (`--rivals`) also by rejection
sampling (supervised fine-tuning on the tickets that it solved in the same cycle). Every policy takes the held-out exam
greedy and sampled. World, base model, trainer and engine are the product's; there is no bus, service, gate or canary.

Writes `learning.json` (every exam) and `learning.md` (tables) into the folder `--output`.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.demo.plan import DEMO, Plan
from ratchet.service.files import write_whole
from ratchet_helpdesk.heldout import GREEDY
from ratchet_helpdesk.world import TRAIN, draw_tasks
from tools.learning.tables import (
    OF_MISJUDGED,
    OVERALL,
    REJECTION,
    RLOO,
    START,
    ClaimedRise,
    Measured,
    Report,
    Setting,
    draw_tables,
)

OUTPUT = Path("docs", "reports")
DATA, TABLES = "learning.json", "learning.md"
CYCLES = 2
SEEDS = (0, 1, 2)
RIVALS = 3
"""How many of them also learn by rejection sampling."""
PACKAGES = ("torch", "transformers", "peft", "trl")
"""Whose versions belong to the figures."""

if TYPE_CHECKING:
    from tools.learning.offline import PlayedByPolicy


def claimed_rises() -> list[ClaimedRise]:
    """What the demo promises of greedy success."""
    rises = DEMO.rises
    if rises is None:
        return []
    return [
        ClaimedRise("`ratchet demo`", kinds, DEMO.promotions, DEMO.rollouts.heldout_tasks, least)
        for kinds, least in ((OVERALL, rises.overall), (OF_MISJUDGED, rises.misjudged))
    ]


def measure_seed(plan: Plan, cycles: int, work: Path, *, rival: bool) -> list[Measured]:
    """Everything about one seed; its policies and exams stay in `work`, and what is there is not made again."""
    import torch  # noqa: PLC0415 - takes seconds to import: only the processes that train need it

    from tools.learning.offline import Bench  # noqa: PLC0415 - as above

    torch.set_num_threads(1)
    folder = work / f"seed-{plan.seed}"
    bench = Bench(plan, folder)
    first = bench.first(bench.base())
    seed = _Seed(plan, folder, first)
    measured = [seed.measured(START, 0, None)]
    methods = [(RLOO, bench.reinforced), *([(REJECTION, bench.imitating)] if rival else [])]
    for method, learn in methods:
        adapter: Path | None = None
        for number in range(1, cycles + 1):
            adapter = learn(first, adapter, partial(seed.play, adapter, number), number)
            measured.append(seed.measured(method, number, adapter))
    return measured


@dataclass(frozen=True, slots=True)
class _Seed:
    """Playing and measuring for one seed."""

    plan: Plan
    folder: Path
    first: Path

    def play(self, adapter: Path | None, number: int) -> list[PlayedByPolicy]:
        """The training tickets of one cycle, every one several times, by the policy that the last cycle made."""
        from tools.learning.offline import Sampler, serve_folder  # noqa: PLC0415 - torch, as above

        seed = 100 * (self.plan.seed + 1) + number
        tasks = draw_tasks(TRAIN, self.plan.tasks, seed) * self.plan.tries
        return Sampler(serve_folder(self.first, adapter), 1.0, seed).play(tasks)

    def measured(self, method: str, cycle: int, adapter: Path | None) -> Measured:
        """The held-out exam of one policy."""
        from tools.learning.offline import serve_folder, take_exam  # noqa: PLC0415 - torch, as above

        kept = self.folder / f"exam {method} {cycle}.json"
        if kept.is_file():
            return msgspec.json.decode(kept.read_bytes(), type=Measured)
        rollouts = self.plan.rollouts
        exam = take_exam(serve_folder(self.first, adapter), rollouts.heldout_tasks, rollouts.heldout_seed)
        measured = Measured.of(self.plan.seed, method, cycle, exam)
        write_whole(kept, msgspec.json.encode(measured), durable=False)
        sys.stderr.write(f"seed {self.plan.seed}, {method}, cycle {cycle}: greedy {measured.success(GREEDY)}\n")
        return measured


def measure_seeds(plan: Plan, options: argparse.Namespace, work: Path) -> list[Measured]:
    """Seeds side by side, each in a process with one torch thread."""
    measured: list[Measured] = []
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        waiting = [
            pool.submit(measure_seed, replace(plan, seed=seed), options.cycles, work, rival=place < options.rivals)
            for place, seed in enumerate(options.seeds)
        ]
        for result in waiting:
            measured += result.result()
    return measured


def recipe_of(plan: Plan) -> dict[str, float]:
    """The plan in numbers, as the report names them."""
    return {
        "drills": plan.drills.examples,
        "drill steps": plan.drills.steps,
        "clerk's tickets": plan.tickets.examples,
        "imitation steps": plan.tickets.steps,
        "tasks a cycle": plan.tasks,
        "tries": plan.tries,
        "learning rate": plan.cycle.learning_rate,
        "passes": plan.cycle.epochs,
        "batch": plan.cycle.batch,
        "held-out tickets": plan.rollouts.heldout_tasks,
    }


def data_file(report: Report) -> str:
    """The report as JSON, with one exam a line: what changes between two reports shows line by line."""
    head = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(report, measured=[])), indent=1).decode()
    exams = ",\n".join(f"  {msgspec.json.encode(one).decode()}" for one in report.measured)
    return head.replace('"measured": []', f'"measured": [\n{exams}\n ]') + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write both files, print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.learning.report", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="which seeds")
    parser.add_argument("--rivals", type=int, default=RIVALS, help="how many of them also try rejection sampling")
    parser.add_argument("--cycles", type=int, default=CYCLES, help="cycles of each method")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="seeds at the same time")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the two files")
    parser.add_argument("--work", type=Path, help="keep policies here, and go on where an earlier run stopped")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ratchet-learning-") as folder:
        measured = measure_seeds(DEMO, options, options.work or Path(folder))
    seeds = " ".join(map(str, options.seeds))
    asked = f"--seeds {seeds} --rivals {options.rivals} --cycles {options.cycles}"
    report = Report(
        setting=Setting(
            command=f"python -m tools.learning.report {asked}",
            machine=f"{os.cpu_count()} cores ({platform.machine()}), one torch thread a seed",
            versions={name: version(name) for name in PACKAGES},
        ),
        recipe=recipe_of(DEMO),
        measured=measured,
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / DATA).write_text(data_file(report))
    tables = draw_tables(report, claimed_rises())
    (options.output / TABLES).write_text(tables)
    sys.stdout.write(tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
