"""Trajectories and feedback that stop coming are noted, from when that is news until it is none."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from ratchet.bus.testing import FakeClock
from ratchet.trajectory_collector.silence import Silence


class Newest:
    """Streams with the ages of their newest messages, in days; None: there was none."""

    def __init__(self, clock: FakeClock, **days: float | None) -> None:
        self._clock, self._days = clock, days

    async def newest_at(self, stream: str) -> datetime | None:
        days = self._days.get(stream.removeprefix("RL_").lower())
        return self._clock() - timedelta(days=days) if days is not None else None


async def noted(**days: float | None) -> tuple[bool, bool]:
    """Whether trajectories, and whether feedback, are noted."""
    clock = FakeClock()
    silence = Silence(Newest(clock, **days), clock)  # pyright: ignore[reportArgumentType]
    await silence.tick()
    return await silence.check_trajectories() is not None, await silence.check_feedback() is not None


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ({}, (False, False)),
        ({"trajectories": 0.5, "turns": 3}, (False, False)),
        ({"trajectories": 3, "turns": 0.5}, (False, False)),
        ({"trajectories": 2, "turns": 3}, (True, False)),
        ({"trajectories": 8, "turns": 8}, (False, False)),
        ({"trajectories": 0.1, "feedback": 2}, (False, False)),
        ({"trajectories": 0.1, "feedback": 4}, (False, True)),
        ({"trajectories": 0.1, "feedback": 15}, (False, False)),
        ({"trajectories": 2, "feedback": 4}, (True, False)),
    ],
)
async def test_silence_is_noted_while_it_is_news(days: dict[str, float], expected: tuple[bool, bool]) -> None:
    assert await noted(**days) == expected
