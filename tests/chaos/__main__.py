"""`make chaos`: faults by a seed under traffic; what is acknowledged must be there once, and canaries judged rightly.

    python -m tests.chaos --faults 200 --seed 1

Each run is kept in `.cache/chaos`; `--report FILE` writes the page of all that are there, up to its next section.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tests.chaos.report import page
from tests.chaos.run import Report, run
from tests.chaos.schedule import KINDS, schedule

RUNS = Path(".cache/chaos")


def main() -> None:
    """Parse the command line, run what is asked for, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="0: no run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--keep", type=Path, help="a folder in which the state stays after a failure")
    parser.add_argument("--report", type=Path, metavar="FILE")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing is left running
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell
    RUNS.mkdir(parents=True, exist_ok=True)
    if words.faults:
        report = asyncio.run(_run(words))
        (RUNS / f"{words.seed}-{words.faults}.json").write_bytes(msgspec.json.encode(report))
        sys.stdout.write(page([report]))
    if words.report is not None:
        kept = [msgspec.json.decode(path.read_bytes(), type=Report) for path in RUNS.glob("*.json")]
        _, heading, below = words.report.read_text().partition("\n## ")  # further sections are not of runs
        words.report.write_text(page(sorted(kept, key=lambda report: report.seed)) + heading + below)


async def _run(words: argparse.Namespace) -> Report:
    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    with TemporaryDirectory(dir=words.keep) as folder:
        return await run(words.seed, schedule(words.seed, words.faults, words.kinds), Path(folder), say)


if __name__ == "__main__":
    main()
