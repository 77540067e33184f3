"""An operator's command as a subprocess: it gets so long and may print so much, and what it leaves running is ended."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

CLOSE_S = 1.0
"""How long the pipes of an ended command may take to close: somebody who left its group may hold them."""
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
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command.line),
            env={**os.environ, **environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Ended(problem=f"cannot run {command.line!r}: {error}")
    try:
        async with asyncio.timeout(command.deadline_s):
            out, err = await _exchanged(process, given, command.most_bytes)
    except TimeoutError:
        return Ended((), command.deadline_s, f"not finished after {command.deadline_s:g} s")
    except _TooMuch:
        return Ended((), time.monotonic() - started, f"it printed more than {command.most_bytes} bytes")
    finally:
        await _end(process)
    lines = tuple(out.decode(errors="replace").splitlines())
    return Ended(lines, time.monotonic() - started, _complaint(process.returncode, err))


async def _exchanged(process: asyncio.subprocess.Process, given: bytes, most: int) -> tuple[bytes, bytes]:
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
        await pipe.wait_closed()


async def _read(pipe: asyncio.StreamReader, most: int) -> bytes:
    """All of it. Raises `_TooMuch`."""
    parts: list[bytes] = []
    size = 0
    while part := await pipe.read(1 << 16):
        size += len(part)
        if size > most:
            raise _TooMuch
        parts.append(part)
    return b"".join(parts)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Whatever the command started goes with it, also when we are cancelled."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    if process.stdin is not None and not process.stdin.transport.is_closing():
        process.stdin.transport.abort()
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            for pipe in (process.stdout, process.stderr):
                while pipe is not None and await pipe.read(1 << 16):
                    pass


def _complaint(returncode: int | None, err: bytes) -> str | None:
    if returncode == 0:
        return None
    tail = err.decode(errors="replace").strip()[-STDERR_TAIL:].replace("\n", " | ")
    return f"the command ended with {returncode}: {tail or 'it said nothing'}"
