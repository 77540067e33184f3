"""How often a service that is too slow is asked: after each time that it took too long, a longer pause.

Pages ask every two seconds. A service under more load than it can take is not helped by questions whose answers come
after their readers have gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ratchet.core.errors import Unavailable
from ratchet.core.service.http_client import TIMEOUT

FIRST_S, LONGEST_S = 2.0, 30.0
"""Pauses double from the first to the longest."""

T = TypeVar("T")


class Pace:
    """One service's. An answer of any kind ends the pauses; so does a connection that fails, which costs it nothing."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._slow: Unavailable | None = None
        """Why it is left alone."""
        self._until = 0.0
        self._next_s = FIRST_S

    async def of(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer. Raises what `ask` raises, and during a pause the last error without asking."""
        left_s = self._until - self._monotonic()
        if self._slow is not None and left_s > 0:
            raise Unavailable(f"{self._slow}; it is asked again in {left_s:.0f} s", code=TIMEOUT)
        try:
            answer = await ask()
        except Unavailable as error:
            if error.code == TIMEOUT:
                self._pause(error)
            else:
                self._end()
            raise
        self._end()
        return answer

    def _pause(self, error: Unavailable) -> None:
        self._slow = error
        self._until = self._monotonic() + self._next_s
        self._next_s = min(2 * self._next_s, LONGEST_S)

    def _end(self) -> None:
        self._slow, self._next_s = None, FIRST_S
