"""A rank of a training as a Ray actor: it trains on whichever machine Ray has put it, as a forked rank does on its own.

Ray runs its methods in threads, so that it can be asked to stop while it trains. The job's directory, and every path in
its job file, lie on a file system that all machines share. No torch before it trains, for libraries read the
environment when they are imported.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from msgspec.structs import replace

from ratchet.trainer_worker.errors import RankLost
from ratchet.trainer_worker.job import JOB_FILE, JobSpec, encode_event, read_job
from ratchet.trainer_worker.training.child import failed, work_in

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class Rank:
    """One of the processes of a training, behind Ray."""

    def __init__(self, directory: str, environment: Mapping[str, str]) -> None:
        ray_util: Any = import_module("ray.util")  # `Any`: no package of the environment that types are checked in
        self._address: str = ray_util.get_node_ip_address()
        self._directory = Path(directory)
        self._stop, self._begun = threading.Event(), threading.Event()
        os.environ.update(environment)
        if (interface := interface_of(self._address)) is not None:
            os.environ.setdefault(INTERFACE_VARIABLE, interface)

    def meeting_point(self) -> str:
        """Where the others find this rank, as `torch.distributed` names it."""
        with socket.socket() as free:
            free.bind((self._address, 0))
            return f"tcp://{self._address}:{free.getsockname()[1]}"

    def lead(self, rendezvous: str, resume: str | None) -> Iterator[bytes]:
        """Train as the first rank. Yields each event as a line; without a last one when another rank is gone."""
        lines = _Lines()
        threading.Thread(target=self._lead, args=(rendezvous, resume, lines), daemon=True).start()
        yield from lines

    def assist(self, index: int, rendezvous: str, resume: str | None) -> bytes | None:
        """Train as another rank; returns why it failed, unless it did because another rank is gone."""
        try:
            spec = self._spec(rendezvous, resume)
            from ratchet.trainer_worker.training.child_run import assist  # noqa: PLC0415 - imports torch

            assist(spec, self._directory, index)
        except RankLost:
            traceback.print_exc()
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            return encode_event(failed(error))
        return None

    def ask_to_stop(self) -> None:
        """Stop after the train step that is at work, with a checkpoint. Of the first rank."""
        self._stop.set()

    def _lead(self, rendezvous: str, resume: str | None, lines: _Lines) -> None:
        try:
            spec = self._spec(rendezvous, resume)
            from ratchet.trainer_worker.training.child_run import train  # noqa: PLC0415 - imports torch

            # Of a file, a training uses no more than `_Lines` has: it writes and flushes.
            lines.write(encode_event(train(spec, self._directory, lines, self._stop, self._begun)))  # pyright: ignore[reportArgumentType]
        except RankLost:
            traceback.print_exc()
        except Exception as error:  # noqa: BLE001 - the boundary of the process
            lines.write(encode_event(failed(error)))
        finally:
            lines.close()

    def _spec(self, rendezvous: str, resume: str | None) -> JobSpec:
        if not (self._directory / JOB_FILE).is_file():
            raise OSError(
                f"{socket.gethostname()} has no {self._directory}: the worker's data directory must be shared"
                " by all machines of the Ray cluster"
            )
        work_in(self._directory)
        return replace(read_job(self._directory), rendezvous=rendezvous, resume=resume)


class _Lines:
    """What a training writes its events to, and what reads them in another thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[bytes]:
        while (line := self._queue.get()) is not None:
            yield line

    def write(self, line: bytes) -> None:
        """One event."""
        self._queue.put(line)

    def flush(self) -> None:
        """Nothing waits to be written."""

    def close(self) -> None:
        """No further event comes."""
        self._queue.put(None)


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has an address; None when none has it."""
    addresses = psutil.net_if_addrs().items()
    return next((name for name, known in addresses if any(own.address == address for own in known)), None)
