"""Waiting for what goes on elsewhere, a job or the gates of a candidate: until it is over, or the time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from ratchet.cli.api import TIMEOUT_S
from ratchet.cli.output import errors
from ratchet.core.errors import Unavailable

T = TypeVar("T")

POLL_S = 0.5
SILENCE_S = 60.0
"""A service that restarts answers again within this time; after it the wait ends with an error."""

Timeout = Annotated[
    float | None,
    typer.Option(min=1, help="With --wait: return after so many seconds at the latest; all goes on."),
]


@contextmanager
def goes_on(what: str, how: str) -> Generator[None]:
    """An interrupt ends the wait alone: says so, and how to follow, or end, what goes on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(f"{what} goes on: {how}", markup=False)
        raise


def require_wait(timeout_s: float | None, *, wait: bool) -> None:
    """Raise `typer.BadParameter` for a time-out without a wait."""
    if timeout_s is not None and not wait:
        raise typer.BadParameter("--timeout is for --wait: without it the command does not wait")


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a wait may take, and its clock."""

    timeout_s: float | None = None
    """None: until it is over."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def until(
    is_over: Callable[[T], bool], seen: T, ask: Callable[[float], T], show: Callable[[T], None], waiting: Waiting
) -> T:
    """What was seen when it was over, or last when the time is up; `show` gets it before each question.

    `ask` gets the seconds that an answer may take. Raises `Unavailable` when the service stays away.
    """
    began = heard = waiting.clock()
    ends = math.inf if waiting.timeout_s is None else began + waiting.timeout_s
    while not is_over(seen) and waiting.clock() < ends:
        show(seen)
        waiting.sleep(POLL_S)
        try:
            seen = ask(max(POLL_S, min(TIMEOUT_S, ends - waiting.clock())))
        except Unavailable:
            if waiting.clock() - heard > SILENCE_S:
                raise
        else:
            heard = waiting.clock()
    return seen
