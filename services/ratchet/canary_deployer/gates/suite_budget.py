"""What suites may take of a candidate where no setting names them: little time, by the pace at which stable answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

AFFORDED_S = 300.0
"""All answers of both policies, as stable's pace has it."""
OVERRUN = 3.0
"""How many times that a candidate may take which is slower than stable."""
WARM, MEASURED = 4, 20
"""Answers that show a pace. The first ones wait for an engine to load the policy, and are left out."""
PATIENCE_S = 60.0
"""Without an answer servers are taken to be away."""
OLD_S = 600.0
"""Without a look the candidate was left alone meanwhile, and begins anew."""


class TooSlow(Exception):
    """All answers would take longer than is afforded."""

    def __init__(self, expected_s: float, afforded_s: float) -> None:
        super().__init__(
            f"at stable's pace all suites take about {expected_s / 60:.1f} minutes, more than {afforded_s / 60:g}"
        )


class Silence(Exception):
    """No answer has come for a while."""


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class SuiteBudget:
    """Of one candidate, from its first look at the suites to their verdict."""

    afforded_s: float = AFFORDED_S
    patience_s: float = PATIENCE_S
    due: int = 0
    """Answers that are still to come when stable begins, of both policies."""
    _begun: float = field(default_factory=_now)
    _heard: float = field(default_factory=_now)
    _answers: int = 0
    _warm: float = 0.0
    _silence: asyncio.Timeout | None = None

    @property
    def left_s(self) -> float:
        """Until the candidate is late."""
        return max(0.0, self._begun + OVERRUN * self.afforded_s - _now())

    @property
    def is_silent(self) -> bool:
        return _now() - self._heard >= self.patience_s

    @property
    def is_old(self) -> bool:
        return _now() - self._heard >= self.patience_s + OLD_S

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Raises `Silence` where no answer comes in time, with those before this."""
        self._silence = silence = asyncio.timeout_at(self._heard + self.patience_s)
        try:
            async with silence:
                yield
        except TimeoutError as error:
            if not silence.expired():
                raise
            raise Silence(f"no answer for {self.patience_s:g} s") from error

    def begin(self, due: int) -> None:
        """Stable begins to play, where so many answers are due."""
        self.due, self._answers = due, 0

    def answered(self) -> None:
        """A policy gave an answer."""
        self._heard = _now()
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(self._heard + self.patience_s)

    def stable_answered(self) -> None:
        """Stable gave one. Raises `TooSlow`."""
        self.answered()
        self._answers += 1
        if self._answers == WARM:
            self._warm = self._heard
        if self._answers >= MEASURED:
            self.afford((self._heard - self._warm) / (self._answers - WARM), self.due)

    def afford(self, pace_s: float, answers: int) -> None:
        """Raises `TooSlow` for so many answers at this pace."""
        if (expected_s := pace_s * answers) > self.afforded_s:
            raise TooSlow(expected_s, self.afforded_s)
