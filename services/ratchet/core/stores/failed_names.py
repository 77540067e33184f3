"""Names of policies that an engine could not serve lately: it does not look them up again for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from ratchet.core.errors import RatchetError

REMEMBERED_S = 5.0
"""How long a name that was not found, or refused, is not looked up again."""
REMEMBERED = 1000
"""Such names kept in memory; the oldest goes first."""


class FailedNames:
    """Remembers each name's failure for `REMEMBERED_S`. For one thread, or under a lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, RatchetError]] = OrderedDict()
        """Name -> until when it counts, and the failure."""

    def raise_remembered(self, name: str) -> None:
        """Raise the failure of `name` again, if there was one lately."""
        until, failure = self._failed.get(name, (0.0, None))
        if failure is None:
            return
        if self._clock() < until:
            raise failure.with_traceback(None)  # it would grow with each time
        del self._failed[name]

    def remember(self, name: str, failure: RatchetError) -> None:
        """`name` failed just now."""
        self._failed[name] = self._clock() + REMEMBERED_S, failure
        self._failed.move_to_end(name)
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)
