"""The ids of trajectories that agents name by a text of their own."""

from __future__ import annotations

import uuid

from ratchet.bus.message import named_id

NAME_CHARACTERS = 200
"""Longest name of a trajectory, run, thread, session or conversation."""


def is_name(text: str) -> bool:
    """Whether a text can be a trajectory's name."""
    return 0 < len(text) <= NAME_CHARACTERS and text.isprintable()


def id_of_name(name: str, key: str = "") -> str:
    """The id of the first trajectory of a name, which counts for one key if that is given; a UUID is the id itself."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return named_id("trajectory", key, name) if key else named_id("trajectory", name)
