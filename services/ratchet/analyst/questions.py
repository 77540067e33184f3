"""What is to be mined, and the process that does it."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import msgspec

from ratchet.analyst.domain.looking import Mined
from ratchet.analyst.domain.windows import Windows
from ratchet.bus.message import Value, decode
from ratchet.core.contract.learning import Pattern
from ratchet.core.errors import Unavailable

MINING_S = 600.0
"""Longest time of a run: 100,000 trajectories take a tenth of it."""


class Place(Value, frozen=True, kw_only=True):
    """Where the warehouse is, as the settings have it."""

    url: str
    database: str
    timeout_s: float


class Question(Value, frozen=True, kw_only=True):
    """Two windows of a role."""

    role: str
    windows: Windows
    alpha: float
    """The run's level."""
    discoveries: int
    """Of earlier runs of the horizon."""
    seed: int
    patterns: tuple[Pattern, ...]
    """Open ones, which are measured again."""
    dismissed: tuple[str, ...] = ()
    """Ids of those that stay so."""
    warehouse: Place


async def ask(question: Question) -> Mined:
    """What a process of its own sees in the windows. Raises `Unavailable` where it fails or takes too long."""
    command = [sys.executable, "-m", "ratchet.analyst.mining_process"]
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        async with asyncio.timeout(MINING_S):
            answer, _ = await process.communicate(msgspec.json.encode(question))
    except TimeoutError as error:
        raise Unavailable(f"the analysis of {question.role} took longer than {MINING_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise Unavailable(f"the analysis of {question.role} ended with exit status {process.returncode}: see the log")
    try:
        return decode(answer, Mined)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the analysis of {question.role} has no answer that can be read: {error}") from error
