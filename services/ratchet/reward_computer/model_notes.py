"""Why a judge or a reward model said nothing last: a note at /readyz, for a while.

Rewards never wait for either, so nothing else would show that one of them has stopped to count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

SHOWN = timedelta(minutes=10)
"""For so long a note stands after the last answer that did not come."""


@dataclass(frozen=True)
class ModelNotes:
    """What is known of the models that were asked last."""

    now: Callable[[], datetime]
    _silent: dict[str, tuple[datetime, str]] = field(default_factory=dict[str, tuple[datetime, str]], init=False)
    """By digest: when a model gave no answer last, and why."""

    def silent(self, digest: str, why: str) -> None:
        """A model gave no answer; `why` is a sentence that names it."""
        self._silent[digest] = self.now(), why

    def answered(self, digest: str) -> None:
        """It did, so what was wrong is over."""
        self._silent.pop(digest, None)

    async def check(self) -> str | None:
        """A check of a service."""
        recent = [why for at, why in self._silent.values() if self.now() - at < SHOWN]
        return "; ".join(recent) or None
