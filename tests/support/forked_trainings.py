"""Training processes, forked from a real warm parent that imports the libraries once for a whole file of tests."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import psutil

from ratchet.trainer_worker.child_process import Streams, library_environment
from ratchet.trainer_worker.job import (
    LOG_FILE,
    MESSAGE_BYTES,
    Event,
    Exited,
    Fork,
    Forked,
    JobSpec,
    Progressed,
    Ready,
    WarmAnswer,
    decode_event,
    write_job,
)
from ratchet.trainer_worker.warm_link import QUIET


@dataclass
class Training:
    """A training process and its ranks."""

    pid: int
    directory: Path
    stdin: int
    lines: BinaryIO

    def events(self) -> list[Event]:
        """All events until it ends."""
        return [decode_event(line) for line in self.lines]

    def until_progress(self) -> None:
        """Return once train steps are being made."""
        for line in self.lines:
            if isinstance(event := decode_event(line), Progressed):
                return
            assert event, event
        raise AssertionError((self.directory / LOG_FILE).read_text())

    def ranks(self) -> list[psutil.Process]:
        """The processes behind the first."""
        return psutil.Process(self.pid).children()

    def end(self) -> None:
        """As the worker's death does."""
        with suppress(OSError):
            os.close(self.stdin)
        self.lines.close()


class Forks:
    """Speaks with the warm parent as a worker does, one question at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._tickets = itertools.count(1)
        self._ended: dict[int, int] = {}
        self._started: list[Training] = []

    def start(self, directory: Path, spec: JobSpec) -> Training:
        directory.mkdir(parents=True)
        write_job(directory, spec)
        events, events_end = os.pipe()
        stdin_end, stdin = os.pipe()
        log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT)
        streams = Streams(stdin_end, events_end, log)
        body = msgspec.json.encode(Fork(next(self._tickets), str(directory), library_environment(os.environ)))
        socket.send_fds(self._control, [body], [streams.stdin, streams.stdout, streams.stderr])
        for descriptor in (stdin_end, events_end, log):
            os.close(descriptor)
        while not isinstance(answer := self.answer(), Forked):
            pass
        training = Training(answer.pid, directory, stdin, os.fdopen(events, "rb"))
        self._started.append(training)
        return training

    def code(self, training: Training) -> int:
        """Exit code of a training, once it has ended."""
        while training.pid not in self._ended:
            self.answer()
        return self._ended[training.pid]

    def answer(self) -> WarmAnswer:
        body, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        answer: WarmAnswer = msgspec.json.decode(body, type=WarmAnswer)
        if isinstance(answer, Exited):
            self._ended[answer.pid] = answer.code
        return answer

    def end(self) -> None:
        for training in self._started:
            training.end()


@contextmanager
def forked_trainings(log: Path) -> Iterator[Forks]:
    """Until the end of the block, which ends the trainings too."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, log.open("wb") as output:
        with theirs:
            parent = subprocess.Popen(
                [sys.executable, "-m", "ratchet.trainer_worker.training.warm_parent", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=library_environment(os.environ) | QUIET,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        forks = Forks(ours)
        try:
            assert forks.answer() == Ready(None), log.read_text()
            yield forks
        finally:
            forks.end()
            parent.send_signal(signal.SIGKILL)
            parent.wait()
