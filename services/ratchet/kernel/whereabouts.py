"""Where the system is, for a program that was told nothing: the stack of a directory says so in its `stack.json`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

STATE_FILE = "stack.json"
DIRECTORY_VARIABLE, DEFAULT_DIRECTORY = "RATCHET_DIR", Path(".ratchet")


class _Stack(msgspec.Struct, frozen=True):
    """The part of the record that leads to its services."""

    pid: int
    env: dict[str, str]


def address(variable: str) -> str | None:
    """The value of an address such as `RATCHET_NATS_URL`: the environment's, else that of the local stack that runs.

    The stack's record is read every time: a program may be older than the stack it talks to.
    """
    return os.environ.get(variable) or _stack_env().get(variable)


def _stack_env() -> dict[str, str]:
    """The environment of the local stack's services; empty when none runs, or its record cannot be read."""
    directory = Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)
    try:
        stack = msgspec.json.decode((directory / STATE_FILE).read_bytes(), type=_Stack)
        os.kill(stack.pid, 0)
    except (OSError, msgspec.DecodeError):
        return {}
    return stack.env
