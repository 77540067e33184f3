"""How long a person waits for the command itself: `python -m tests.bench.bench_cli [ROUNDS]`.

Commands in turn, 20 rounds by default (about a minute), none of which talks to a stack: help, and completion by Tab.
For each the median in ms, by the clock and of the processor, and the processor's ratio to an empty Python and to one
that imports typer, pair by pair: the ratios hold on a busy machine too.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median

EMPTY, TYPER = "python -c pass", "import typer"
RATCHET = (sys.executable, "-m", "ratchet.cli")


def completing(words: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The command that bash runs for Tab after `ratchet <words>`."""
    place = str(len(words.split(" ")))
    return {"_RATCHET_COMPLETE": "complete_bash", "COMP_WORDS": f"ratchet {words}", "COMP_CWORD": place}, RATCHET


COMMANDS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    EMPTY: ({}, (sys.executable, "-c", "pass")),
    TYPER: ({}, (sys.executable, "-c", "import typer")),
    **{f"ratchet {words}".strip(): ({}, (*RATCHET, *words.split())) for words in ("--help", "--version")},
    **{
        f"ratchet {words} --help": ({}, (*RATCHET, *words.split(), "--help"))
        for words in ("up", "jobs", "policies", "rollout", "status", "deadletters", "dataset", "preferences", "export")
    },
    "ratchet jo<Tab>": completing("jo"),
    "ratchet jobs --ro<Tab>": completing("jobs --ro"),
}


def timed(env: dict[str, str], command: tuple[str, ...]) -> tuple[float, float]:
    """Milliseconds by the clock and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took * 1e3, (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    measured = [{name: timed(*how) for name, how in COMMANDS.items()} for _ in range(rounds)]
    sys.stdout.write(f"{'command':30} {'ms':>6} {'processor':>9} {'/ empty':>8} {'/ typer':>8}\n")
    for name in COMMANDS:
        wall, processor = (median(one[name][part] for one in measured) for part in (0, 1))
        ratios = [median(one[name][1] / one[base][1] for one in measured) for base in (EMPTY, TYPER)]
        sys.stdout.write(f"{name:30} {wall:6.0f} {processor:9.0f} {ratios[0]:8.1f} {ratios[1]:8.1f}\n")


if __name__ == "__main__":
    main()
