"""`ratchet demo`: closes the loop while you watch, prints the final table; exit code 0 if it closed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from rich.console import Console

from ratchet.demo.loop import Ending, close_the_loop
from ratchet.demo.plan import DEMO, SMALL, Plan
from ratchet.demo.progress import Progress, clock_text
from ratchet.demo.report import draw_report
from ratchet.demo.show import Screen, plain, shown
from ratchet.kernel.errors import RatchetError

DIRECTORY = Path(".ratchet/demo")
LINES_WIDTH = 140
"""Columns where there is no terminal to fill, as in a log file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when every claim holds."""
    parser = argparse.ArgumentParser(prog="ratchet demo", description=__doc__)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="state and logs; emptied at the start")
    parser.add_argument("--small", action="store_true", help="a smaller loop with a single promotion")
    parser.add_argument("--plain", action="store_true", help="lines instead of the live picture")
    options = parser.parse_args(argv)
    console = Console(force_terminal=False) if options.plain else Console()
    if not console.is_terminal:
        console.width = LINES_WIDTH
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        ending = asyncio.run(watch(SMALL if options.small else DEMO, options.directory, console))
    except RatchetError as error:
        sys.stderr.write(f"ratchet demo: {error} (logs in {options.directory / 'logs'})\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if ending.closed else 1


async def watch(plan: Plan, directory: Path, console: Console) -> Ending:
    """Close the loop, show it, and print what came of it."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    progress = Progress(listen=console.print if plain(console) else None)
    screen = Screen(progress)
    with shown(screen, console):
        ending = await close_the_loop(plan, directory, progress, None if plain(console) else screen.watch)
    console.print(draw_report(ending.findings, ending.claims, ending.story))
    console.print(f"{clock_text(progress.elapsed_s)} from an empty directory to a stopped stack.")
    return ending


if __name__ == "__main__":
    raise SystemExit(main())
