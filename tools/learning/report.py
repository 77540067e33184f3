"""The learning report: `python -m tools.learning.report` measures what is missing and writes docs/learning.md.

A cell is one variant of an experiment with one seed; its line in docs/learning/cells.jsonl appears when it ends, so a
run that was stopped goes on with the next one, and policies in `--work` of the same recipe and trainer are used again.
To measure a cell again, delete its line. World, base model, trainer and engine are the product's; there is no bus,
service, gate or canary. With `--public` the cells are those on public tasks (`make bench-learning`, in the environment
of `make tasks`), else those of the demo.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

from ratchet.core.errors import RatchetError
from ratchet.local.demo.plan import DEMO, FULL
from tools.learning.cells import (
    ALGORITHMS,
    EXPERIMENTS,
    OF_MISJUDGED,
    OVERALL,
    REJECTION,
    RLOO,
    SHORT,
    Cell,
    Result,
    add_result,
    all_cells,
    is_public,
    read_lines,
    read_results,
)
from tools.learning.pairs import draw_pairs
from tools.learning.public_tables import draw_earlier, draw_public
from tools.learning.sweep import SWEEP, draw_sweep
from tools.learning.tables import ClaimedRise, draw_tables
from tools.learning.worlds import open_world

REPORT, FOLDER = Path("docs", "learning.md"), Path("docs", "learning")
CELLS, EARLIER, PAIRS = FOLDER / "cells.jsonl", FOLDER / "earlier.jsonl", FOLDER / "pairs.json"
WORK = Path(".cache", "learning")


def claimed_rises() -> list[ClaimedRise]:
    """What the demos in the help desk's world promise of greedy success."""
    return [
        ClaimedRise(run, experiment, variant, kinds, plan.promotions, plan.rollouts.heldout_tasks, least)
        for run, plan, experiment, variant in (
            ("`ratchet demo`", DEMO, SHORT, REJECTION),
            ("`ratchet demo --full`", FULL, ALGORITHMS, RLOO),
        )
        if (rises := plan.rises) is not None
        for kinds, least in ((OVERALL, rises.overall), (OF_MISJUDGED, rises.misjudged))
        if least is not None
    ]


def measure_cell(cell: Cell, work: Path, threads: int = 1) -> Result:
    """Measure a cell."""
    # Torch takes seconds to import: only the processes that train need it.
    from tools.learning.measure import measure  # noqa: PLC0415

    return measure(cell, work, threads)


def write_report() -> None:
    """Draw the report from what was measured."""
    REPORT.write_text(draw_report())


def draw_report(root: Path = Path()) -> str:
    """The report: of the demo's world, and of public tasks."""
    results = read_results(root / CELLS)
    public = draw_public([result for result in results if is_public(result)])
    own = draw_tables([result for result in results if not is_public(result)], claimed_rises())
    rest = (draw_pairs(root / PAIRS), public, draw_earlier(read_lines(root / EARLIER)), draw_sweep(root / SWEEP))
    return own + "".join(f"\n{part}\n" for part in rest if part)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, draw the report."""
    parser = argparse.ArgumentParser(prog="python -m tools.learning.report", description=__doc__)
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="which cells: 'staleness/*'")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="cells at the same time")
    parser.add_argument("--work", type=Path, default=WORK, help="policies are kept here")
    parser.add_argument("--public", action="store_true", help="cells on public tasks, not those of the demo")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for a cell")
    parser.add_argument("--list", action="store_true", help="name the missing cells, and measure none")
    options = parser.parse_args(argv)
    measured = {result.cell for result in read_results(CELLS)}
    missing = [
        cell
        for cell in all_cells()
        if is_public(cell) == options.public
        and cell not in measured
        and any(fnmatch(str(cell), pattern) for pattern in options.only)
    ]
    if options.list:
        sys.stdout.writelines(f"{cell}\n" for cell in missing)
        return 0
    try:
        for world in {EXPERIMENTS[cell.experiment].world for cell in missing}:
            open_world(world, seed=0)
        measure_all(missing, options)
    except RatchetError as error:  # tasks or the model are not installed
        sys.stderr.write(f"{error}\n")
        return 1
    write_report()
    return 0


def measure_all(cells: Sequence[Cell], options: argparse.Namespace) -> None:
    """Measure cells, and draw the report whenever one has ended."""
    with ProcessPoolExecutor(options.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {pool.submit(measure_cell, cell, options.work, options.threads): cell for cell in cells}
        for done in as_completed(waiting):
            add_result(CELLS, done.result())
            sys.stderr.write(f"{waiting[done]}\n")
            write_report()


if __name__ == "__main__":
    raise SystemExit(main())
