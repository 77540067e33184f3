"""Training processes from the standard library's fork server, which imports the libraries once for a file of tests."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import BinaryIO

import psutil

from ratchet.trainer_worker.child_process import Streams, library_environment
from ratchet.trainer_worker.fork_server import GO, PRELOAD, become_training
from ratchet.trainer_worker.job import LOG_FILE, Event, JobSpec, Progressed, decode_event, write_job


@dataclass
class Training:
    """A training process and its ranks."""

    process: ForkServerProcess
    pid: int
    directory: Path
    stdin: Connection
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

    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        self.process.join()
        return self.process.exitcode

    def end(self) -> None:
        """As the worker's death does."""
        self.stdin.close()
        self.lines.close()
        self.process.join()


class Forks:
    """Starts trainings as a worker does."""

    def __init__(self) -> None:
        self._started: list[Training] = []

    def start(self, directory: Path, spec: JobSpec) -> Training:
        """Write the job file and begin."""
        directory.mkdir(parents=True)
        write_job(directory, spec)
        return self.begin(directory)

    def begin(self, directory: Path) -> Training:
        """Begin the job in `directory`, whose file may be a pipe."""
        (events, events_end), (stdin_end, stdin) = Pipe(duplex=False), Pipe(duplex=False)
        log = Connection(os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT))
        word, go = Pipe(duplex=False)
        arguments = (str(directory), library_environment(os.environ), Streams(stdin_end, events_end, log), word)
        process = multiprocessing.get_context("forkserver").Process(target=become_training, args=arguments, daemon=True)
        process.start()
        go.send_bytes(GO)
        for end in (stdin_end, events_end, log, word, go):
            end.close()
        assert process.pid is not None
        training = Training(process, process.pid, directory, stdin, os.fdopen(os.dup(events.fileno()), "rb"))
        events.close()
        self._started.append(training)
        return training

    def end(self) -> None:
        """End them all."""
        for training in self._started:
            training.end()


@contextmanager
def forked_trainings() -> Generator[Forks]:
    """Until the end of the block, which ends the trainings too."""
    with own_server(PRELOAD):
        forks = Forks()
        try:
            yield forks
        finally:
            forks.end()


@contextmanager
def own_server(preload: str) -> Generator[None]:
    """A fork server that imports `preload`; it ends with the block, by which what it forked must have ended."""
    forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType] - made for tests
    multiprocessing.set_forkserver_preload([preload])
    try:
        yield
    finally:
        forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage, reportUnknownMemberType]
