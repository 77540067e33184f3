"""`ratchet demo`: a stack of its own, the scenario, the final table; exit code 0 if the loop closed."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog
from rich.console import Console

from ratchet.demo.connections import Connections, connect
from ratchet.demo.observer import Observer
from ratchet.demo.plan import DEMO, SMALL, Plan, deployer_environment
from ratchet.demo.progress import COLLECTOR, Progress, clock_text
from ratchet.demo.report import Claim, claims, draw_report, read_findings
from ratchet.demo.scenario import DemoFailed, Scenario
from ratchet.demo.show import Screen, plain, shown
from ratchet.embedded.member import Member
from ratchet.embedded.orphans import end_orphans
from ratchet.embedded.plan import kernel_of
from ratchet.embedded.settings import StackSettings
from ratchet.embedded.stack import Stack
from ratchet.embedded.state import read_record, remove_record, stack_lock
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
        held = asyncio.run(run(SMALL if options.small else DEMO, options.directory, console))
    except RatchetError as error:
        sys.stderr.write(f"ratchet demo: {error} (logs in {options.directory / 'logs'})\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0 if all(claim.holds for claim in held) else 1


async def run(plan: Plan, directory: Path, console: Console) -> list[Claim]:
    """The whole demo; returns what it claims."""
    current = asyncio.current_task()
    assert current is not None  # noqa: S101 - a coroutine runs in a task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)
    progress = Progress(listen=console.print if plain(console) else None)
    screen = Screen(progress)
    await asyncio.to_thread(empty, directory)
    with shown(screen, console):
        async with started(plan, directory, progress) as connections, watched(connections) as observer:
            screen.observer = observer
            scenario = Scenario(plan, connections, progress, directory / "logs")
            told = await _told(scenario)
            findings = await read_findings(connections, scenario.story)
            await observer.look()
    held = [told, *claims(findings, scenario.story, plan)]
    console.print(draw_report(findings, held, scenario.story))
    console.print(f"{clock_text(progress.elapsed_s)} from an empty directory to a stopped stack.")
    return held


async def _told(scenario: Scenario) -> Claim:
    """Run the scenario. Where it stops early, the report still says how far it came."""
    try:
        await scenario.run()
    except DemoFailed as error:
        return Claim("the story was told to its end", holds=False, evidence=str(error))
    return Claim("the story was told to its end", holds=True, evidence="")


@asynccontextmanager
async def started(plan: Plan, directory: Path, progress: Progress) -> AsyncIterator[Connections]:
    """The stack, with connections to it; stopped in order at the end."""
    ready: list[str] = []

    def tell(member: Member) -> None:
        if member.ready.is_set() and member.program.name not in ready:
            ready.append(member.program.name)
            progress.note(f"{member.program.name} is ready")

    stack = Stack(StackSettings(directory=directory, free_ports=True, env=deployer_environment(plan.rollouts)), tell)
    with progress.step("the stack starts", COLLECTOR):
        await stack.__aenter__()
    try:
        kernel = kernel_of(stack.env).model_copy(update={"data_dir": directory / "data" / "demo"})
        async with connect(stack, kernel) as connections:
            yield connections
    finally:
        with progress.step("the stack stops", COLLECTOR):
            await stack.__aexit__(None, None, None)


@asynccontextmanager
async def watched(connections: Connections) -> AsyncIterator[Observer]:
    """An observer at work for as long as the block runs."""
    observer = Observer(connections)
    looking = asyncio.create_task(observer.run())
    try:
        yield observer
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


def empty(directory: Path) -> None:
    """Forget an earlier run, ending what it may have left running. Raises `AlreadyRunning`."""
    with stack_lock(directory):
        left = read_record(directory)
        if left is not None:
            end_orphans(left)
            remove_record(directory)
        for name in ("data", "logs"):
            shutil.rmtree(directory / name, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
