"""The role's evaluator: an operator's command, with limits on its time and output; its process group ends with it.

A process that leaves the group (`setsid`) goes on, and blocks no gate: input and output are files, not pipes that it
could hold open. A guard beside the command ends the group when this process is killed: the gate runs again after a
restart, and two of the same command would play at once.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import Played, read_results
from ratchet.canary_deployer.gates.base import HeldoutRun

GUARD = 'read -r _; kill -s KILL -- "-$1"'
"""Waits until its input is closed, which a kill of this process does, and ends the group of its argument."""
MOST_BYTES = 16 * 1024 * 1024
"""Of the evaluator's output, and of its complaints: a command that prints more is ended."""
LOOK_S = 0.1
"""How often its output is measured."""
STDERR_TAIL = 400
"""Characters of the command's complaint that are reported."""


@dataclass(frozen=True, slots=True)
class SubprocessJudge:
    """Runs the role's evaluator once for all answers of both policies; it cannot see which policy gave an answer."""

    line: str
    deadline_s: float

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        """The evaluator's judgements of `answers`: one JSON line each goes in, one result each comes out."""
        started, played = time.monotonic(), Played()
        try:
            with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
                given.writelines(msgspec.json.encode(answer) + b"\n" for answer in answers)
                given.seek(0)
                problem = await self._run(role, given, out, err)
                if problem is None:
                    out.seek(0)
                    played = read_results(out.read().decode(errors="replace").splitlines())
        except (OSError, ValueError) as error:
            problem = f"cannot run {self.line!r}: {error}"
        return HeldoutRun(played, time.monotonic() - started, problem)

    async def _run(self, role: str, given: IO[bytes], out: IO[bytes], err: IO[bytes]) -> str | None:
        """Run the command to its end or to its deadline: why its output cannot be used; None where it can."""
        environment = {**os.environ, "RATCHET_ROLE": role}
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.line), env=environment, stdin=given, stdout=out, stderr=err, start_new_session=True
        )
        guard = None
        try:
            guard = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", GUARD, "guard", str(process.pid), stdin=PIPE, start_new_session=True
            )
            async with asyncio.timeout(self.deadline_s):
                while process.returncode is None:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_S):
                            await process.wait()
                    if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in (out, err)):
                        return f"it printed more than {MOST_BYTES} bytes"
        except TimeoutError:
            return f"not finished after {self.deadline_s:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if guard is not None:  # killed before its input is closed, so that it ends no other group
                with suppress(ProcessLookupError):
                    guard.kill()
                await guard.wait()
        if process.returncode == 0:
            return None
        err.seek(0)
        tail = err.read().decode(errors="replace").strip()[-STDERR_TAIL:].replace("\n", " | ")
        return f"the command ended with {process.returncode}: {tail or 'it printed no reason'}"
