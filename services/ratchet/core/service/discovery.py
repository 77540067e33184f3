"""Where the system is when no setting gives its address: the local stack of a directory records it in `stack.json`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec

from ratchet.bus.message import decode

STATE_FILE = "stack.json"
DIRECTORY_VARIABLE, DEFAULT_DIRECTORY = "RATCHET_DIR", Path(".ratchet")


class _Stack(msgspec.Struct, frozen=True):
    """The part of the record that leads to its services."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=2**31)]
    env: dict[str, str]


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
    """The environment of the services of a local stack; empty when none runs, or its record cannot be read.

    Only a record that `user` owns counts: in a folder that others write to, their record would lead to their servers.
    """
    try:
        with (directory / STATE_FILE).open("rb") as file:
            if os.fstat(file.fileno()).st_uid != user:
                return {}
            stack = decode(file.read(), _Stack)
        os.kill(stack.pid, 0)
    except (OSError, msgspec.DecodeError):
        return {}
    return stack.env
