"""Starts and stops the agents' process, and reads what it says at its end."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ratchet.core.errors import RatchetError
from ratchet_helpdesk.agents import Tally
from ratchet_helpdesk.worlds import HELPDESK, World

STOP_S = 120.0
"""Longest time for finishing the tickets that are open."""


class AgentsFailed(RatchetError):
    """The agents' process ended with an error."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Which tickets to work on. Without `tasks`, until they are stopped."""

    gateway_url: str
    seed: int
    tries: int
    agents: int
    tasks: int | None = None
    world: World = HELPDESK

    def command(self) -> list[str]:
        """The command line of the process."""
        numbers = {"seed": self.seed, "tries": self.tries, "agents": self.agents, "tasks": self.tasks}
        options = [text for name, value in numbers.items() if value is not None for text in (f"--{name}", str(value))]
        module = [sys.executable, "-m", "ratchet_helpdesk.agents", "--gateway", self.gateway_url]
        return [*module, "--world", self.world.name, "--leashed", *options]


class Crew:
    """Agents at work."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    async def finish(self) -> Tally:
        """Wait until they have played all their tickets."""
        return self._tally(await self._last_words())

    async def stop(self) -> Tally:
        """Let them finish the tickets that they have open, and go."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                out = await self._last_words()
        except TimeoutError as error:
            raise AgentsFailed(f"the agents did not stop within {STOP_S:g} s: see {self._log}") from error
        return self._tally(out)

    async def kill(self) -> None:
        """End the process if it still runs."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _last_words(self) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        out = await self._process.stdout.read()
        await self._process.wait()
        return out

    def _tally(self, out: bytes) -> Tally:
        if self._process.returncode != 0:
            raise AgentsFailed(f"the agents ended with {self._process.returncode}: see {self._log}")
        return Tally(**json.loads(out))


@asynccontextmanager
async def crew(shift: Shift, log: Path) -> AsyncIterator[Crew]:
    """Agents at work for as long as the block runs."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *shift.command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    at_work = Crew(process, log)
    try:
        yield at_work
    finally:
        await at_work.kill()
