"""Shows the demo while it runs: a live picture in a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from ratchet.demo.observer import Observer
from ratchet.demo.picture import Picture
from ratchet.demo.progress import Progress
from ratchet.demo.view import WIDTH, draw

FRAMES_PER_SECOND = 4


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


def plain(console: Console) -> bool:
    """Whether the live picture cannot be shown here."""
    return not console.is_terminal or console.width < WIDTH or console.height < 26


@contextmanager
def shown(screen: Screen, console: Console) -> Iterator[None]:
    """The live picture, for as long as the block runs."""
    if plain(console):
        yield
        return
    with Live(screen, console=console, refresh_per_second=FRAMES_PER_SECOND, redirect_stdout=False):
        yield
