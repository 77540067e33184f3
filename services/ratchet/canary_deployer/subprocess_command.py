"""An operator's command as a subprocess: it gets so long and may print so much, and its process group ends with it.

What leaves the group (`setsid`) goes on, and holds nobody up. A guard beside the command ends the group when this
process is killed: the gate is asked again after a restart, and two of the same command would play at once.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

READ_BYTES = 1 << 16
"""Of one read of a pipe."""
GUARD = 'read -r _; kill -s KILL -- "-$1"'
"""Waits until its input is closed, which a kill of this process does, and ends the group that it is told."""
STDERR_TAIL = 400
"""Characters of the command's complaint that are reported."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and what it may cost."""

    line: str
    deadline_s: float
    most_bytes: int
    """Of its output, and of its complaints: whoever prints more is ended."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command printed, and why that cannot be used."""

    lines: tuple[str, ...] = ()
    seconds: float = 0.0
    problem: str | None = None


class _TooMuch(Exception):
    """The command printed more than it may."""


async def run(command: Command, environment: Mapping[str, str], given: bytes = b"") -> Ended:
    """Run a command to its end or to its deadline, with `given` as its input."""
    started = time.monotonic()
    try:
        process, transport = await _begun(command.line, environment)
    except (OSError, ValueError) as error:
        return Ended(problem=f"cannot run {command.line!r}: {error}")
    guard = None
    try:
        guard = await _guarded(process)
        async with asyncio.timeout(command.deadline_s):
            out, err = await _exchanged(process, given, command.most_bytes)
    except TimeoutError:
        return Ended((), command.deadline_s, f"not finished after {command.deadline_s:g} s")
    except _TooMuch:
        return Ended((), time.monotonic() - started, f"it printed more than {command.most_bytes} bytes")
    finally:
        await _end(process, transport)
        if guard is not None:
            await _dismissed(guard)
    lines = tuple(out.decode(errors="replace").splitlines())
    return Ended(lines, time.monotonic() - started, _complaint(process.returncode, err))


async def _begun(line: str, environment: Mapping[str, str]) -> tuple[Process, asyncio.SubprocessTransport]:
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


async def _guarded(process: Process) -> Process:
    """The guard of a command that has just begun."""
    return await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", GUARD, "guard", str(process.pid), stdin=PIPE, start_new_session=True
    )


async def _dismissed(guard: Process) -> None:
    """Killed before its input is closed, so that it ends nobody."""
    with suppress(ProcessLookupError):
        guard.kill()
    await guard.wait()


async def _exchanged(process: Process, given: bytes, most: int) -> tuple[bytes, bytes]:
    """Output and complaints, while the input is written. Raises `_TooMuch`."""
    assert process.stdin is not None  # noqa: S101 - all are pipes
    assert process.stdout is not None  # noqa: S101 - all are pipes
    assert process.stderr is not None  # noqa: S101 - all are pipes
    tasks = [
        asyncio.create_task(_read(process.stdout, most)),
        asyncio.create_task(_read(process.stderr, most)),
    ]
    writing = asyncio.create_task(_written(process.stdin, given))
    try:
        out, err = await asyncio.gather(*tasks)
        await process.wait()
        return out, err
    finally:
        for task in (writing, *tasks):
            task.cancel()
        await asyncio.gather(writing, *tasks, return_exceptions=True)


async def _written(pipe: asyncio.StreamWriter, given: bytes) -> None:
    """A command need not read what it is given."""
    with suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(given)
        await pipe.drain()
        pipe.close()


async def _read(pipe: asyncio.StreamReader, most: int) -> bytes:
    """All of it. Raises `_TooMuch`."""
    parts: list[bytes] = []
    size = 0
    while part := await pipe.read(READ_BYTES):
        size += len(part)
        if size > most:
            raise _TooMuch
        parts.append(part)
    return b"".join(parts)


async def _end(process: Process, transport: asyncio.SubprocessTransport) -> None:
    """The command's group goes with it, also when we are cancelled.

    Our ends of the pipes are closed: somebody who left the group may hold the others, and asyncio says that a process
    has ended only when its pipes are closed too.
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


def _complaint(returncode: int | None, err: bytes) -> str | None:
    if returncode == 0:
        return None
    tail = err.decode(errors="replace").strip()[-STDERR_TAIL:].replace("\n", " | ")
    return f"the command ended with {returncode}: {tail or 'it said nothing'}"
