"""Where the system is when no setting gives its address: the local stack of a directory records it in `stack.json`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from ratchet.bus.message import decode

STATE_FILE = "stack.json"
WHEN_NEEDED = "starts when needed"
"""State of a member that starts when a job or a policy needs it."""
DIRECTORY_VARIABLE, DEFAULT_DIRECTORY = "RATCHET_DIR", Path(".ratchet")


class _Member(msgspec.Struct, frozen=True):
    state: str


class _Stack(msgspec.Struct, frozen=True):
    """The part of the record that leads to its services."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
    env: dict[str, str]
    services: dict[str, _Member] = {}


def address(variable: str) -> str | None:
    """The value of an address such as `RATCHET_NATS_URL`: the environment's, else that of the local stack that runs.

    The stack's record is read every time: a program may be older than the stack it talks to.
    """
    configured = os.environ.get(variable)
    if configured or sys.platform == "win32":  # no stack runs there, and signal 0 would end a process
        return configured
    directory = Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)
    return stack_env(directory, os.geteuid()).get(variable)


def stack_env(directory: Path, user: int) -> dict[str, str]:
    """The environment of the services of a local stack; empty when none runs, or its record cannot be read."""
    stack = _running_stack(directory, user)
    return {} if stack is None else stack.env


def member_state(name: str) -> str | None:
    """The state of a member of the local stack that `RATCHET_DIR` names, as its supervisor last saw it; None without
    that variable, stack or member."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    stack = None if not directory or sys.platform == "win32" else _running_stack(Path(directory), os.geteuid())
    member = None if stack is None else stack.services.get(name)
    return None if member is None else member.state


def _running_stack(directory: Path, user: int) -> _Stack | None:
    """Only a record that `user` owns counts: in a folder that others write to, theirs would lead to their servers."""
    try:
        with (directory / STATE_FILE).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != user:
                return None
            stack = decode(file.read(), _Stack)
        os.kill(stack.pid, 0)
    except (OSError, msgspec.DecodeError):
        return None
    return stack
