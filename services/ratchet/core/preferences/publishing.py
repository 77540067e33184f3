"""Publishes preferences that are not stored yet; one that is refused does not hold up the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ratchet.core.contract import Message, Preference
from ratchet.core.errors import InvalidMessage, Rejected

CHUNK = 100
"""Preferences published together."""


class Sink(Protocol):
    """Where preferences and imports go: a bus."""

    async def publish_all(self, messages: Sequence[Message]) -> None:
        """Store all of them. Raises `InvalidMessage`, `Rejected` or `BusUnavailable`."""
        ...


Known = Callable[[Sequence[str]], Awaitable[frozenset[str]]]
"""Those of some ids that are stored: `StoredPreferences.known`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A preference that the contract or the broker does not take."""

    preference_id: str
    reason: str


@dataclass
class Published:
    """What became of the preferences."""

    published: int = 0
    present: int = 0
    """Stored already: nothing was sent."""
    refused: list[Refused] = field(default_factory=list[Refused])


async def publish(sink: Sink, stored: Known, preferences: Sequence[Preference], done: Published) -> None:
    """Publish what is new and note it in `done`. Raises `BusUnavailable`; trying again goes on where that happened."""
    for start in range(0, len(preferences), CHUNK):
        chunk = preferences[start : start + CHUNK]
        known = await stored([preference.preference_id for preference in chunk])
        fresh = [preference for preference in chunk if preference.preference_id not in known]
        done.present += len(chunk) - len(fresh)
        await _send(sink, fresh, done)


async def _send(sink: Sink, fresh: Sequence[Preference], done: Published) -> None:
    """Together; when one is refused, one by one, to know which."""
    if not fresh:
        return
    try:
        await sink.publish_all(fresh)
    except (InvalidMessage, Rejected) as error:
        if len(fresh) == 1:
            done.refused.append(Refused(fresh[0].preference_id, str(error)))
            return
        for preference in fresh:
            await _send(sink, [preference], done)
        return
    done.published += len(fresh)
