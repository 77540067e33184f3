"""Loopback ports: free ones, and whether one is taken."""

from __future__ import annotations

import itertools
import os
import socket
from collections import deque
from collections.abc import Collection

LOOPBACK = "127.0.0.1"

FIRST, LAST = 15_000, 32_000
"""Below the range from which the kernel takes the ports of outgoing connections: those come and go while we start."""

STRIDE = 97
"""Processes with neighbouring pids begin this far apart, so that stacks that start side by side do not meet."""


_places = itertools.count(os.getpid() * STRIDE)
RESERVED = 256
"""How many ports a process keeps reserved, the newest ones: long enough for their servers to have come up."""
_reserved: deque[int] = deque()
"""Descriptors of the sockets that hold them; they end with the process."""


def free_ports(count: int, excluded: Collection[int] = ()) -> list[int]:
    """Different ports without a listener, reserved: no other process that asks here is offered them.

    On Linux a server that sets SO_REUSEADDR, as servers do, can listen on them all the same.
    Raises `OSError` when there are none.
    """
    ports: list[int] = []
    for _ in range(LAST - FIRST):
        if len(ports) == count:
            return ports
        port = FIRST + next(_places) % (LAST - FIRST)
        if port not in excluded and _reserve(port):
            ports.append(port)
    raise OSError(f"there are no {count} free ports between {FIRST} and {LAST}")


def free_port() -> int:
    """One port without a listener, reserved."""
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


def _reserve(port: int) -> bool:
    """Bind it, which fails where another process has, and only then let a server bind it beside us."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.bind((LOOPBACK, port))
    except OSError:
        held.close()
        return False
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reserved.append(held.detach())
    if len(_reserved) > RESERVED:
        os.close(_reserved.popleft())
    return True
