"""The warm parent: a process that imports what trainings need once, and forks a training process whenever it is asked.

Run by `warm_link.WarmLink` as `python -m ratchet.trainer_worker.training.warm_parent <fd> [<module> ...]`, where the
modules are imported instead of `PRELOADED`, and nothing is rehearsed. It has one thread, never initialises a GPU, and
does nothing but fork and report how its children ended: so its memory does not grow, and a child cannot inherit a lock
that another thread holds. It ends with the worker: its control socket closes, and the kernel sends SIGKILL. Its
children outlive it; each ends by itself when the worker does (see `child`). Linux only: it needs pidfds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ratchet.rules.algorithms import BUILT_IN
from ratchet.trainer_worker.job import MESSAGE_BYTES, Exited, Fork, Forked, Ready, Refused
from ratchet.trainer_worker.training.child import main as train

PRELOADED = (
    "torch",
    "transformers",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "peft",
    "trl",
    "ratchet.trainer_worker.training.child_run",
    *(algorithm.train.partition(":")[0] for algorithm in BUILT_IN),
)
"""Modules that training processes import; a model class that is missing here is imported by the child."""

PR_SET_PDEATHSIG = 1
STREAMS = 3
"""File descriptors that come with a fork request: standard input, output and error of the child."""


def main(control: socket.socket, modules: Sequence[str]) -> int:
    """Import, then fork on request until the worker is gone."""
    die_with_parent()
    for module in modules or PRELOADED:
        import_module(module)
    if not modules:
        rehearse_training()
    gc.collect()
    # What exists now is shared with every child: a collection that touched it would copy it.
    gc.freeze()
    unfit = unfit_to_fork()
    control.send(msgspec.json.encode(Ready(unfit)))
    if unfit is None:
        with suppress(BrokenPipeError):
            _Forks(control).serve()
    return 0


class _Forks:
    """Forks on request, and reports which children have ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        """Process ids of living children, by pidfd."""
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Return when the worker has closed the control socket, by will or by dying."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    body, streams, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, STREAMS)
                    if not body:
                        return
                    self._fork(msgspec.json.decode(body, type=Fork), streams)
                else:
                    self._poll.unregister(descriptor)
                    pid = self._pids.pop(descriptor)
                    os.close(descriptor)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    self._control.send(msgspec.json.encode(Exited(pid, code)))

    def _fork(self, request: Fork, streams: list[int]) -> None:
        """Make one training process. The streams are the child's alone."""
        try:
            pid = os.fork()
            if pid == 0:
                self._become_child(request, streams)
        except OSError as error:
            self._control.send(msgspec.json.encode(Refused(request.ticket, str(error))))
            return
        finally:
            for stream in streams:
                os.close(stream)
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        socket.send_fds(self._control, [msgspec.json.encode(Forked(request.ticket, pid))], [pidfd])

    def _become_child(self, request: Fork, streams: list[int]) -> NoReturn:
        """Leave this process' session and files behind, and train. Never returns into the loop above."""
        status = 1
        try:
            os.setsid()
            self._control.close()
            for pidfd in self._pids:
                os.close(pidfd)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.environ.clear()
            os.environ.update(request.environment)
            status = train(Path(request.directory))
        except BaseException:  # noqa: BLE001 - the boundary of the process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def rehearse_training() -> None:
    """Let the libraries do what they do once. A failure costs every training that time, and is in the log."""
    from ratchet.trainer_worker.training.rehearsal import rehearse  # noqa: PLC0415 - imports torch

    try:
        rehearse()
    except Exception:  # noqa: BLE001 - the boundary of what only saves time: trainings do the same for themselves
        traceback.print_exc()


def unfit_to_fork() -> str | None:
    """Why a fork of this process as it is now would not be safe; None when it is."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"the imports started {threads - 1} threads"
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    # Only in a process that is forked for the question does torch say whether CUDA was touched before.
    pid = os.fork()
    if pid == 0:
        os._exit(1 if torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() else 0)  # noqa: SLF001
    return "the imports initialised CUDA" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) else None


def die_with_parent() -> None:
    """Have the kernel end this process with the thread that made it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


if __name__ == "__main__":
    sys.exit(main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]))
