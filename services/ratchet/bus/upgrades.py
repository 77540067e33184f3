"""Older versions of topics: how the body of one becomes the body of the next.

A breaking change of a contract is a new topic beside the old one, in the same stream, and an entry here. A reader of
the new version then gets messages of both, those of the old one upgraded; a reader of the old one notices nothing. The
procedure is in contracts/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Any
"""Parsed JSON."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """From one version of a topic to the next."""

    to: str
    """The newer topic."""
    body: Callable[[Json], Json]
    """The newer body of an older one that keeps its schema. Pure; ids stay, so that the event is the same one."""


Upgrades = Mapping[str, Upgrade]
"""By the older topic. Versions follow one another: v1 to v2, v2 to v3."""

NO_UPGRADES: Upgrades = {}
"""Every topic still has its first version."""


def upgrade_path(upgrades: Upgrades, topic: str, topics: Collection[str]) -> list[Upgrade]:
    """The upgrades from `topic` to the first version that is one of `topics`; none when no later one is."""
    steps: list[Upgrade] = []
    while topic not in topics:
        if topic not in upgrades:
            return []
        steps.append(upgrades[topic])
        topic = upgrades[topic].to
    return steps


def older_versions(upgrades: Upgrades, topic: str) -> Iterator[str]:
    """The older versions that lead to `topic`, nearest first."""
    for older, upgrade in upgrades.items():
        if upgrade.to == topic:
            yield older
            yield from older_versions(upgrades, older)
