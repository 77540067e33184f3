"""Loopback ports: free ones, and whether one is taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"

FIRST, LAST = 15_000, 32_000
"""Below the range from which the kernel takes the ports of outgoing connections: those come and go while we start."""

STRIDE = 97
"""Processes with neighbouring pids begin this far apart, so that stacks that start side by side do not meet."""


def _candidates() -> Iterator[int]:
    place = os.getpid() * STRIDE
    while True:
        yield FIRST + place % (LAST - FIRST)
        place += 1


_next_candidate = _candidates()


def free_ports(count: int, excluded: Collection[int] = ()) -> list[int]:
    """Different ports that nobody listens on now. A port is not offered again soon, so that it stays free for its use.

    Raises `OSError` when there are none.
    """
    found: list[int] = []
    with ExitStack() as held:
        for _ in range(LAST - FIRST):
            if len(found) == count:
                return found
            port = next(_next_candidate)
            if port not in excluded and _held(port, held):
                found.append(port)
    raise OSError(f"there are no {count} free ports between {FIRST} and {LAST}")


def free_port() -> int:
    """One port that nobody listens on now."""
    return free_ports(1)[0]


def is_taken(port: int) -> bool:
    """True when a listener holds `port` on the loopback address or on all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def _held(port: int, held: ExitStack) -> bool:
    one = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    try:
        one.bind((LOOPBACK, port))
    except OSError:
        return False
    return True
