"""Runs the demo for somebody: closes the loop while they watch, then prints the final table or one document."""

from __future__ import annotations

import asyncio
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
from rich.console import Console

from ratchet.demo.loop import Ending, close_the_loop
from ratchet.demo.plan import DEMO, SMALL
from ratchet.demo.progress import Progress, clock_text
from ratchet.demo.report import draw_report
from ratchet.demo.report_document import report_document
from ratchet.demo.show import Screen, plain, shown
from ratchet.errors import RatchetError

LINES_WIDTH = 140
"""Columns where there is no terminal to fill, as in a log file."""


class DemoBroke(RatchetError):
    """The demo ended early; the message says where its logs are."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run it."""

    directory: Path
    """State and logs; emptied at the start."""
    small: bool = False
    plain: bool = False
    as_json: bool = False


def run(options: Options) -> int:
    """Run the demo; 0 when every claim holds, 130 when it was interrupted. Raises `DemoBroke`."""
    lines = options.plain or options.as_json
    console = Console(force_terminal=False if lines else None, quiet=options.as_json)
    if not console.is_terminal:
        console.width = LINES_WIDTH
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        ending = asyncio.run(_watch(options, console))
    except RatchetError as error:
        raise DemoBroke(f"{error} (logs in {options.directory / 'logs'})") from error
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0 if ending.closed else 1


async def _watch(options: Options, console: Console) -> Ending:
    """Close the loop, show it, and print what came of it."""
    watching = asyncio.current_task()
    assert watching is not None  # noqa: S101 - this is one
    # Not by way of SIGINT, which a shell's background jobs ignore.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, watching.cancel)
    progress = Progress(listen=console.print if plain(console) else None)
    screen, plan = Screen(progress), SMALL if options.small else DEMO
    with shown(screen, console):
        ending = await close_the_loop(plan, options.directory, progress, None if plain(console) else screen.watch)
    if options.as_json:
        document = report_document(ending.findings, ending.claims, ending.story)
        body = msgspec.json.format(msgspec.json.encode({**document, "seconds": progress.elapsed_s}), indent=2)
        Console().out(body.decode(), highlight=False)
        return ending
    console.print(draw_report(ending.findings, ending.claims, ending.story))
    console.print(f"{clock_text(progress.elapsed_s)} from an empty directory to a stopped stack.")
    return ending
