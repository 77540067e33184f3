"""Commands with limits on their time and output, whose process group ends with them; the role's evaluator is one.

A process that leaves the group (`setsid`) goes on, and blocks no gate. A guard beside the command ends the group when
this process is killed: the gate runs again after a restart, and two of the same command would play at once.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.paired import read_results
from ratchet.canary_deployer.gates.base import HeldoutRun

READ_BYTES = 1 << 16
"""Of one read of a pipe."""
GUARD = 'read -r _; kill -s KILL -- "-$1"'
"""Waits until its input is closed, which a kill of this process does, and ends the group of its argument."""
MOST_BYTES = 16 * 1024 * 1024
"""Of the evaluator's output, and of its complaints: a command that prints more is ended."""
STDERR_TAIL = 400
"""Characters of the command's complaint that are reported."""


@dataclass(frozen=True, slots=True)
class SubprocessJudge:
    """Runs the role's evaluator once for all answers of both policies; it cannot see which policy gave an answer."""

    line: str
    deadline_s: float

    async def judge(self, role: str, answers: Sequence[JsonObject]) -> HeldoutRun:
        """The evaluator's judgements of `answers`: one JSON line each goes in, one result each comes out."""
        lines = b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers)
        started = time.monotonic()
        printed, problem = await run_killed(self.line, self.deadline_s, {"RATCHET_ROLE": role}, lines)
        return HeldoutRun(read_results(printed.splitlines()), time.monotonic() - started, problem)


class _TooMuchOutput(Exception):
    """The command printed more than it may."""


async def run_killed(
    line: str, deadline_s: float, environment: Mapping[str, str], standard_input: bytes
) -> tuple[str, str | None]:
    """Run a command to its end or to its deadline: what it printed, and why that cannot be used."""
    try:
        process, transport = await _start(line, environment)
    except (OSError, ValueError) as error:
        return "", f"cannot run {line!r}: {error}"
    guard = None
    try:
        guard = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", GUARD, "guard", str(process.pid), stdin=PIPE, start_new_session=True
        )
        async with asyncio.timeout(deadline_s):
            out, err = await _communicate(process, standard_input)
    except TimeoutError:
        return "", f"not finished after {deadline_s:g} s"
    except _TooMuchOutput:
        return "", f"it printed more than {MOST_BYTES} bytes"
    finally:
        await _kill(process, transport)
        if guard is not None:  # killed before its input is closed, so that it ends no other group
            with suppress(ProcessLookupError):
                guard.kill()
            await guard.wait()
    problem = None
    if process.returncode != 0:
        tail = err.decode(errors="replace").strip()[-STDERR_TAIL:].replace("\n", " | ")
        problem = f"the command ended with {process.returncode}: {tail or 'it printed no reason'}"
    return out.decode(errors="replace"), problem


async def _start(line: str, environment: Mapping[str, str]) -> tuple[Process, asyncio.SubprocessTransport]:
    """A process with three pipes, and the transport that can close them. Raises `OSError` or `ValueError`."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(READ_BYTES, loop),
        *shlex.split(line),
        env={**os.environ, **environment},
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    return Process(transport, protocol, loop), transport


async def _communicate(process: Process, standard_input: bytes) -> tuple[bytes, bytes]:
    """Output and complaints, while the input is written. Raises `_TooMuchOutput`."""
    assert process.stdin is not None  # noqa: S101 - all are pipes
    assert process.stdout is not None  # noqa: S101 - all are pipes
    assert process.stderr is not None  # noqa: S101 - all are pipes
    reading = [
        asyncio.create_task(_read(process.stdout)),
        asyncio.create_task(_read(process.stderr)),
    ]
    writing = asyncio.create_task(_write(process.stdin, standard_input))
    try:
        out, err = await asyncio.gather(*reading)
        await process.wait()
        return out, err
    finally:
        for task in (writing, *reading):
            task.cancel()
        await asyncio.gather(writing, *reading, return_exceptions=True)


async def _write(pipe: asyncio.StreamWriter, standard_input: bytes) -> None:
    """Write the input, as much of it as the command reads."""
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(standard_input)
        await pipe.drain()
        pipe.close()


async def _read(pipe: asyncio.StreamReader) -> bytes:
    """All of it. Raises `_TooMuchOutput`."""
    parts: list[bytes] = []
    size = 0
    while part := await pipe.read(READ_BYTES):
        size += len(part)
        if size > MOST_BYTES:
            raise _TooMuchOutput
        parts.append(part)
    return b"".join(parts)


async def _kill(process: Process, transport: asyncio.SubprocessTransport) -> None:
    """Kill the command's group, also when we are cancelled.

    Our ends of the pipes are closed: a process that left the group may hold the others, and asyncio reports the end of
    a process only when its pipes are closed too.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for number in range(3):
        pipe = transport.get_pipe_transport(number)
        if isinstance(pipe, asyncio.WriteTransport):
            if pipe.get_write_buffer_size() or not pipe.is_closing():
                pipe.abort()
        elif pipe is not None:
            pipe.close()
    await process.wait()
