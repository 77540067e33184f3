"""`ratchet demo`: closes one loop on a stack of its own, shows it meanwhile, and prints what was read at the end."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from ratchet.bus.tasks import end
from ratchet.core.contract.policy_manifest import BFLOAT16
from ratchet.core.errors import Conflict, RatchetError
from ratchet.local.demo.claims import Claim, Findings, claims, read_findings
from ratchet.local.demo.connections import Connections, connect
from ratchet.local.demo.observer import Observer, Picture
from ratchet.local.demo.plan import (
    DEMO,
    EXAMS,
    FULL,
    HELD_OUT,
    PROMPTS,
    REAL,
    REAL_FLOAT32,
    Plan,
    notice,
    stack_environment,
    vllm_settings,
    what_comes,
    write_held_out,
)
from ratchet.local.demo.progress import COLLECTOR, Progress, clock_text
from ratchet.local.demo.prompts import PromptScenario, scripted_provider, upstreams
from ratchet.local.demo.report import draw_report, report_document
from ratchet.local.demo.scenario import DemoFailed, Scenario, Story, real_model
from ratchet.local.demo.view import WIDTH, draw
from ratchet.local.local_stack.catalog import ENGINE, TRAINER
from ratchet.local.local_stack.member import Member
from ratchet.local.local_stack.orphans import end_orphans
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.preflight import require_writable
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from ratchet.local.local_stack.state import LOCK_FILE, read_record, remove_record, stack_lock
from ratchet.local.local_stack.vllm import START_S, VllmSettings, installed_vllm

LINES_WIDTH = 140
"""Columns where there is no terminal to fill, as in a log file."""
FRAMES_PER_SECOND = 4


class DemoBroke(RatchetError):
    """The demo ended early; the message says where its logs are."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to run it."""

    directory: Path
    """State and logs: a new or empty directory, or one of an earlier demo, which is emptied at the start."""
    full: bool = False
    """Everything is made in the demo: its base model and its bad policy, too."""
    real: bool = False
    """SmolLM2 in the reception, in place of a tiny model at the help desk."""
    prompts: bool = False
    """Prompts over a scripted model, and no training."""
    plain: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended."""

    findings: Findings
    story: Story
    claims: list[Claim]

    @property
    def closed(self) -> bool:
        """Whether the loop closed: every claim holds."""
        return all(claim.holds for claim in self.claims)


class Screen:
    """Draws whatever is true at each frame."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._observer: Observer | None = None

    def watch(self, observer: Observer) -> None:
        """The stack runs: draw what this observer sees."""
        self._observer = observer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        picture = self._observer.picture if self._observer else Picture()
        yield draw(picture, self._progress)


def run(options: Options) -> int:
    """Run the demo; 0 when every claim holds, 130 when it was interrupted. Raises `DemoBroke`, and as `require_own`."""
    require_own(options.directory)
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


def _plan(options: Options) -> Plan:
    if options.prompts:
        return PROMPTS
    if options.real:
        return REAL if _fastest_format() == BFLOAT16 else REAL_FLOAT32
    return FULL if options.full else DEMO


def _fastest_format() -> str:
    """Measured in a process of its own: torch would stay in this one's memory."""
    command = [sys.executable, "-m", "ratchet.local.number_format"]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()  # noqa: S603 - our own


async def _watch(options: Options, console: Console) -> Ending:
    """Close the loop, show it, and print what came of it."""
    watching = asyncio.current_task()
    assert watching is not None  # noqa: S101 - this is one
    # Not by way of SIGINT, which a shell's background jobs ignore.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, watching.cancel)
    # Elsewhere the live picture cannot be shown.
    live = console.is_terminal and console.width >= WIDTH and console.height >= 26
    progress = Progress(listen=None if live else console.print)
    screen, plan = Screen(progress), _plan(options)
    vllm = None
    console.print(what_comes(plan))
    if plan.drills is None:
        python = installed_vllm()
        console.print(notice(plan, on_vllm=python is not None))
        base = await asyncio.to_thread(real_model)  # what is missing is said before anything starts
        vllm = vllm_settings(plan, python, base) if python is not None else None
    shown = Live(screen, console=console, refresh_per_second=FRAMES_PER_SECOND, redirect_stdout=False) if live else None
    with shown or nullcontext():
        ending = await close_the_loop(plan, options.directory, progress, screen.watch if live else None, vllm)
    if options.as_json:
        document = report_document(ending.findings, ending.claims, ending.story)
        body = msgspec.json.format(msgspec.json.encode({**document, "seconds": progress.elapsed_s}), indent=2)
        Console().out(body.decode(), highlight=False)
        return ending
    console.print(draw_report(ending.findings, ending.claims, ending.story))
    console.print(f"{clock_text(progress.elapsed_s)} from an empty directory to a stopped stack.")
    return ending


async def close_the_loop(
    plan: Plan,
    directory: Path,
    progress: Progress,
    seen: Callable[[Observer], None] | None = None,
    vllm: VllmSettings | None = None,
) -> Ending:
    """Run everything in `directory`, emptied of an earlier demo first; nothing runs afterwards.

    `seen` gets the observer. `vllm` serves the policies; without it `engine_local` does.
    """
    await asyncio.to_thread(empty, directory)
    async with (
        _stack(plan, directory, progress, vllm) as connections,
        _watched(connections, progress, plan, directory, seen),
    ):
        scenario = (PromptScenario if plan.prompted else Scenario)(plan, connections, progress, directory)
        ran = Claim("the demo ran to its end", holds=True, evidence="")
        try:
            await scenario.run()
        except DemoFailed as error:  # the report still says how far it came
            ran = replace(ran, holds=False, evidence=str(error))
        findings = await read_findings(connections, scenario.story, directory / EXAMS, plan.world)
    return Ending(findings, scenario.story, [ran, *claims(findings, scenario.story, plan)])


@asynccontextmanager
async def _stack(
    plan: Plan, directory: Path, progress: Progress, vllm: VllmSettings | None
) -> AsyncIterator[Connections]:
    """The stack, with connections to it; stopped in order at the end."""
    ready: set[str] = set()

    def note_ready(member: Member) -> None:
        if member.ready.is_set() and member.name not in ready:
            ready.add(member.name)
            progress.note(f"{member.name} is ready")

    async with AsyncExitStack() as providers:
        write_held_out(plan, directory)
        environment = stack_environment(plan, directory)
        if plan.prompted:
            url = await providers.enter_async_context(scripted_provider())
            environment = {**environment, **upstreams(url, plan.world.role)}
        settings = StackSettings(directory=directory, free_ports=True, env=environment, vllm=vllm)
        stack = Stack(replace(settings, start_s=START_S) if vllm is not None else settings, note_ready)
        with progress.step("the stack starts", COLLECTOR):
            await stack.__aenter__()
        for name in (TRAINER, ENGINE):  # their imports take half a minute, and the first job comes sooner
            if name in stack.members and not plan.prompted:
                stack.start(name)
        try:
            shared = shared_of(stack.env).model_copy(update={"data_dir": directory / "data" / "demo"})
            async with connect(stack, shared) as connections:
                yield connections
        finally:
            with progress.step("the stack stops", COLLECTOR):
                await stack.__aexit__(None, None, None)


@asynccontextmanager
async def _watched(
    connections: Connections, progress: Progress, plan: Plan, directory: Path, seen: Callable[[Observer], None] | None
) -> AsyncIterator[None]:
    """An observer at work for as long as the block runs, if the caller wants to see what it sees."""
    if seen is None:
        yield
        return
    observer = Observer(connections, progress, directory / EXAMS, plan.world)
    seen(observer)
    looking = asyncio.create_task(observer.run())
    try:
        yield
    finally:
        await end(looking)
        with suppress(RatchetError):
            await observer.look()


def require_own(directory: Path) -> None:
    """Raise `ConfigError` where no state can be kept, and `Conflict` where the files are no demo's."""
    require_writable(directory)
    held = [path for path in directory.iterdir() if path.name != LOCK_FILE] if directory.is_dir() else []
    if held and not (directory / HELD_OUT).is_file():
        raise Conflict(
            f"{directory} holds files of no earlier demo, and a demo empties its directory: "
            "name a new one with `--dir`, or remove it yourself"
        )


def empty(directory: Path) -> None:
    """Forget an earlier run, ending what it may have left running. Raises `AlreadyRunning`, and as `require_own`."""
    require_own(directory)
    with stack_lock(directory):
        left = read_record(directory)
        if left is not None:
            end_orphans(left)
            remove_record(directory)
        mark = HELD_OUT.parts[0]
        for path in sorted(directory.iterdir(), key=lambda path: path.name == mark):  # the mark goes last
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK_FILE:
                path.unlink()
