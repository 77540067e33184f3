"""The worlds whose tasks the learning report plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ratchet.local.demo.plan import DEMO, FULL
from tools.learning.worlds.base import World
from tools.learning.worlds.bfcl import bfcl
from tools.learning.worlds.games import games
from tools.learning.worlds.helpdesk import Helpdesk
from tools.learning.worlds.procedural import Procedural
from tools.learning.worlds.reasoning import REASONING
from tools.learning.worlds.typed_json import TYPED_JSON

PROCEDURAL: Mapping[str, Procedural] = {"typed_json": TYPED_JSON, **REASONING}
"""Questions that are drawn without end, by name."""
WORLDS: dict[str, Callable[[int], World]] = {
    "helpdesk": lambda seed: Helpdesk(replace(FULL, seed=seed)),
    "demo": lambda seed: Helpdesk(replace(DEMO, seed=seed)),
    "bfcl": bfcl,
    "games": games,
    **{name: tasks.world for name, tasks in PROCEDURAL.items()},
}
"""By name: the world of a seed."""


def open_world(name: str, seed: int) -> World:
    """Raises `NoTasks` where the package with its tasks is not installed."""
    return WORLDS[name](seed)
