"""Where the demo stands: its steps with their times, and what happened. The scenario writes, the views read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

AGENTS, GATEWAY, COLLECTOR, REWARDS = "agents", "gateway", "collector", "rewards"
SNAPSHOT, TRAINER, GATE, CANARY = "snapshot", "trainer", "gate", "canary"
"""The stations of the loop."""


@dataclass(slots=True)
class Step:
    """One step of the scenario."""

    title: str
    station: str
    """Which station of the loop is at work."""
    started_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened, seconds after the start."""

    at_s: float
    text: str


class Progress:
    """Steps and notes in the order in which they happened; `listen` hears each of them."""

    def __init__(
        self, listen: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.steps: list[Step] = []
        self.notes: list[Note] = []
        self._listen = listen
        self._clock = clock
        self._begun = clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    @property
    def current(self) -> Step | None:
        """The step at work."""
        return next((step for step in reversed(self.steps) if step.ended_s is None), None)

    @contextmanager
    def step(self, title: str, station: str) -> Iterator[None]:
        """One step, for as long as the block runs."""
        step = Step(title, station, self.elapsed_s)
        self.steps.append(step)
        self._report(step.started_s, title)
        try:
            yield
        finally:
            step.ended_s = self.elapsed_s

    def note(self, text: str) -> None:
        """Something happened."""
        note = Note(self.elapsed_s, text)
        self.notes.append(note)
        self._report(note.at_s, f"  {text}")

    def _report(self, at_s: float, text: str) -> None:
        if self._listen is not None:
            self._listen(f"{clock_text(at_s)}  {text}")


def clock_text(seconds: float) -> str:
    """`1:07` for 67 seconds."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
