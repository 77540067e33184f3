"""`--watch`: an answer again and again, as a picture that stays in its place on a terminal, as lines elsewhere.

A service that is away is named, and the watch goes on with the last answer. Ctrl-C ends it, with exit code 130.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Generic, TypeVar

import typer
from rich.text import Text

from ratchet.cli.output import console
from ratchet.core.errors import RatchetError, Unavailable

T = TypeVar("T")

REFRESH_S = 2.0

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every two seconds, until Ctrl-C.")]


@dataclass(frozen=True, slots=True)
class Frame(Generic[T]):
    """What a watch knows at an instant."""

    at: datetime
    value: T | None
    """The last answer; None before the first one."""
    trouble: str | None
    """Why there is no newer one."""


def watch(
    read: Callable[[], T],
    show: Callable[[T], object],
    as_json: bool,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show what `read` answers until Ctrl-C. Raises `typer.BadParameter` with `--json`, and the first answer's errors,
    unless a service is away: it may come back.
    """
    if as_json:
        raise typer.BadParameter("--json prints one document, and --watch has no end: choose one")
    if console.is_terminal:
        _in_place(frames(read, sleep), show)
    else:
        _in_lines(frames(read, sleep), show)


def frames(read: Callable[[], T], sleep: Callable[[float], None]) -> Generator[Frame[T]]:
    """What there is to show, every two seconds."""
    value: T | None = None
    while True:
        try:
            value, trouble = read(), None
        except RatchetError as error:
            if value is None and not isinstance(error, Unavailable):
                raise
            trouble = str(error)
        yield Frame(datetime.now().astimezone(), value, trouble)
        sleep(REFRESH_S)


def _in_place(every: Generator[Frame[T]], show: Callable[[T], object]) -> None:
    """Draw each frame over the one before; the last one stays on the terminal when the watch ends."""
    last = ""
    try:
        first = drawn(next(every), show)  # its error belongs on the terminal itself
        with console.screen() as screen:
            last = first
            screen.update(Text.from_ansi(last, no_wrap=True))
            for frame in every:
                last = drawn(frame, show)
                screen.update(Text.from_ansi(last, no_wrap=True))
    finally:
        console.print(Text.from_ansi(last), end="")


def _in_lines(every: Generator[Frame[T]], show: Callable[[T], object]) -> None:
    """Print each frame that differs from the one before."""
    before = ""
    for frame in every:
        text = drawn(frame, show)
        _, _, now = text.partition("\n")
        if now != before:
            console.file.write(f"{text}\n")
            console.file.flush()
        before = now


def drawn(frame: Frame[T], show: Callable[[T], object]) -> str:
    """A frame as text, its instant in the first line."""
    with console.capture() as captured:
        console.print(f"{frame.at:%H:%M:%S}  every {REFRESH_S:g} s, Ctrl-C ends", style="dim", markup=False)
        if frame.trouble is not None:
            console.print(f"no answer: {frame.trouble}", style="red", markup=False)
        if frame.value is not None:
            show(frame.value)
    return captured.get()
