"""What a process does before it ends by itself, whichever way it was made."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable


class Latch:
    """Opens once. A `threading.Event` whose `wait` Ctrl-C breaks off can stay locked for ever; this cannot."""

    def __init__(self) -> None:
        self._shut = threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Let all pass."""
        self._shut.release()

    def wait(self, deadline_s: float) -> bool:
        """Wait until it is open; False when the deadline came first."""
        opened = self._shut.acquire(timeout=deadline_s)
        if opened:
            self._shut.release()
        return opened


def at_exit(leave: Callable[[], object]) -> Callable[[], None]:
    """Have `leave` called before this process ends; the function that is returned takes that back.

    Children of `multiprocessing` end by `os._exit`, without `atexit`, but run what is registered with `Finalize`. A
    process that has not imported it is none of them, and need not pay for the import. Where both call, both do.
    """
    atexit.register(leave)
    forget: Callable[[], object] = bool
    if "multiprocessing.util" in sys.modules:
        from multiprocessing.util import Finalize  # noqa: PLC0415 - see above

        forget = Finalize(None, leave, exitpriority=10).cancel

    def stay() -> None:
        atexit.unregister(leave)
        forget()

    return stay
