"""One closed loop: a stack of its own, the scenario on it, and what was read at the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ratchet.bus.tasks import end
from ratchet.demo.connections import Connections, connect
from ratchet.demo.observer import Observer
from ratchet.demo.plan import EXAMS, Plan, stack_environment
from ratchet.demo.progress import COLLECTOR, Progress
from ratchet.demo.report import Claim, Findings, claims, read_findings
from ratchet.demo.scenario import DemoFailed, Scenario, Story
from ratchet.errors import RatchetError
from ratchet.local_stack.member import Member
from ratchet.local_stack.orphans import end_orphans
from ratchet.local_stack.plan import shared_of
from ratchet.local_stack.settings import StackSettings
from ratchet.local_stack.stack import Stack
from ratchet.local_stack.state import read_record, remove_record, stack_lock


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


async def close_the_loop(
    plan: Plan, directory: Path, progress: Progress, seen: Callable[[Observer], None] | None = None
) -> Ending:
    """Run everything in `directory`, which is emptied first; nothing runs afterwards. `seen` gets the observer."""
    await asyncio.to_thread(_empty, directory)
    async with _stack(plan, directory, progress) as connections, _watched(connections, progress, directory, seen):
        scenario = Scenario(plan, connections, progress, directory)
        ran = await _run(scenario)
        findings = await read_findings(connections, scenario.story, directory / EXAMS)
    return Ending(findings, scenario.story, [ran, *claims(findings, scenario.story, plan)])


async def _run(scenario: Scenario) -> Claim:
    """Run the scenario. Where it stops early, the report still says how far it came."""
    try:
        await scenario.run()
    except DemoFailed as error:
        return Claim("the demo ran to its end", holds=False, evidence=str(error))
    return Claim("the demo ran to its end", holds=True, evidence="")


@asynccontextmanager
async def _stack(plan: Plan, directory: Path, progress: Progress) -> AsyncIterator[Connections]:
    """The stack, with connections to it; stopped in order at the end."""
    ready: set[str] = set()

    def tell(member: Member) -> None:
        if member.ready.is_set() and member.name not in ready:
            ready.add(member.name)
            progress.note(f"{member.name} is ready")

    stack = Stack(StackSettings(directory=directory, free_ports=True, env=stack_environment(plan, directory)), tell)
    with progress.step("the stack starts", COLLECTOR):
        await stack.__aenter__()
    try:
        shared = shared_of(stack.env).model_copy(update={"data_dir": directory / "data" / "demo"})
        async with connect(stack, shared) as connections:
            yield connections
    finally:
        with progress.step("the stack stops", COLLECTOR):
            await stack.__aexit__(None, None, None)


@asynccontextmanager
async def _watched(
    connections: Connections, progress: Progress, directory: Path, seen: Callable[[Observer], None] | None
) -> AsyncIterator[None]:
    """An observer at work for as long as the block runs, if somebody wants to see what it sees."""
    if seen is None:
        yield
        return
    observer = Observer(connections, progress, directory / EXAMS)
    seen(observer)
    looking = asyncio.create_task(observer.run())
    try:
        yield
    finally:
        await end(looking)
        with suppress(RatchetError):
            await observer.look()


def _empty(directory: Path) -> None:
    """Forget an earlier run, ending what it may have left running. Raises `AlreadyRunning`."""
    with stack_lock(directory):
        left = read_record(directory)
        if left is not None:
            end_orphans(left)
            remove_record(directory)
        for name in ("data", "logs"):
            shutil.rmtree(directory / name, ignore_errors=True)
