"""The warm parent: a process that imports what trainings need once, and forks a training process whenever it is asked.

Run by `warm_link.WarmLink` as `python -m ratchet.trainer_worker.training.warm_parent <fd> [<module> ...]`, where the
modules are imported instead of `PRELOADED`, and nothing is rehearsed. It has one thread, never initialises a GPU, and
does nothing but fork and report how its children ended: so its memory does not grow, and a child cannot inherit a lock
that another thread holds. A process that has started a GPU cannot be forked, and starting one takes seconds: where the
worker asks for it, a *spare* is forked in advance, which starts its GPU and waits for its training. The parent ends
with the worker: its control socket closes, and the kernel sends SIGKILL. Spares end with the parent. Trainings outlive
it; each ends by itself when the worker does (see `child`). Linux only: it needs pidfds.
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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ratchet.core.rules.algorithms import BUILT_IN
from ratchet.trainer_worker.job import MESSAGE_BYTES, Exited, Fork, Forked, Ready, Refused, Spares, WarmRequest
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

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
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


@dataclass(frozen=True, slots=True)
class _Spare:
    """A child that waits for its training."""

    pid: int
    pidfd: int
    control: socket.socket


class _Forks:
    """Forks on request, and reports which children have ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[int, int] = {}
        """Process ids of living children, by pidfd."""
        self._devices: list[str] = []
        """Of the spares that shall be there whenever no training has their place."""
        self._spares: dict[str, list[_Spare]] = {}
        self._busy: dict[int, str] = {}
        """Devices that a training has taken the place of a spare on, by process id."""
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
                    self._answer(msgspec.json.decode(body, type=WarmRequest), streams)
                else:
                    self._poll.unregister(descriptor)
                    pid = self._pids.pop(descriptor)
                    os.close(descriptor)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    self._control.send(msgspec.json.encode(Exited(pid, code)))
                    self._forget(pid)

    def _answer(self, request: WarmRequest, streams: list[int]) -> None:
        if isinstance(request, Spares):
            self._devices = request.devices
            for device in request.devices:
                self._add_spare(device)
        elif not self._hand_to_spare(request, streams):
            self._fork(request, streams)

    def _add_spare(self, device: str) -> None:
        """Without one, a training is forked when it comes."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            return
        if pid == 0:
            ours.close()
            self._become_spare(device, theirs)
        theirs.close()
        pidfd = os.pidfd_open(pid)
        self._pids[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._spares.setdefault(device, []).append(_Spare(pid, pidfd, ours))

    def _hand_to_spare(self, request: Fork, streams: list[int]) -> bool:
        """Whether a spare on the training's device took it."""
        device = request.environment.get(CUDA_VARIABLE, "")
        if not (spares := self._spares.get(device)):
            return False
        spare = spares.pop()
        with spare.control:
            try:
                socket.send_fds(spare.control, [msgspec.json.encode(request)], streams)
            except OSError:  # it has died; its end is yet to be read
                return False
        for stream in streams:
            os.close(stream)
        self._busy[spare.pid] = device
        socket.send_fds(self._control, [msgspec.json.encode(Forked(request.ticket, spare.pid))], [spare.pidfd])
        return True

    def _forget(self, pid: int) -> None:
        """A training that has ended makes room for the next spare; a spare that died by itself is not replaced."""
        if (device := self._busy.pop(pid, None)) is not None:
            self._add_spare(device)
            return
        for spares in self._spares.values():
            spares[:] = [spare for spare in spares if spare.pid != pid]

    def _become_spare(self, device: str, control: socket.socket) -> NoReturn:
        """Start the GPU, wait for a training, and become it; or end with the parent."""
        try:
            self._leave()
            os.environ[CUDA_VARIABLE] = device
            start_gpu()
            body, streams, _, _ = socket.recv_fds(control, MESSAGE_BYTES, STREAMS)
            control.close()
            if body:
                become_training(msgspec.json.decode(body, type=Fork), streams)
        except BaseException:  # noqa: BLE001 - the boundary of the process
            traceback.print_exc()
        finally:
            os._exit(1)

    def _become_child(self, request: Fork, streams: list[int]) -> NoReturn:
        """Train. Never returns into the loop above."""
        try:
            self._leave()
            become_training(request, streams)
        finally:
            os._exit(1)

    def _leave(self) -> None:
        """Leave this process' session and files behind."""
        os.setsid()
        self._control.close()
        for pidfd in self._pids:
            os.close(pidfd)
        for spare in (spare for spares in self._spares.values() for spare in spares):
            spare.control.close()

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


def become_training(request: Fork, streams: list[int]) -> NoReturn:
    """Train in this process, with the streams and the environment of the request."""
    status = 1
    try:
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


def start_gpu() -> None:
    """Start CUDA and its libraries, where there is a GPU: a small product of matrices needs most of them."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        ones = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        (ones @ ones).float().sum().backward()
        torch.cuda.synchronize()


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
