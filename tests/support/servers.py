"""The real servers for integration tests: the broker, the warehouse and the object store, on free loopback ports.

`RATCHET_TEST_SERVERS` chooses what they are: `embedded` (the default, programs from the package index) or `containers`
(of the images that docker-compose.yml names, which needs a container engine).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from ratchet.core.service.settings import PREFIX, SharedSettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.process import Process
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import clickhouse_server, clickhouse_url, nats_server, seaweed_s3
from tests.support.containers import clickhouse_container, nats_container, running_container, s3_container

START_S = 300.0
"""Deadline for one server's start on a busy machine."""

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"
PASSWORD = "test-password"
"""The warehouse's."""

CHOICE = "RATCHET_TEST_SERVERS"

_numbers = itertools.count()


class Server(Protocol):
    """A server that tests may also kill and start again, on the same port and data."""

    @property
    def url(self) -> str: ...
    def kill(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def in_containers(environment: Mapping[str, str]) -> bool:
    """Whether the servers are containers."""
    chosen = environment.get(CHOICE, "embedded")
    if chosen not in ("embedded", "containers"):
        raise pytest.UsageError(f"{CHOICE} is embedded or containers, not {chosen!r}")
    return chosen == "containers"


@dataclass
class RunningServer:
    """A server that tests may also kill and start again, on the same port and data."""

    program: Program
    log: Path
    process: Process
    url: str
    """Where clients reach it, with the password that it asks for."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        _finish(self.process)

    def start(self) -> None:
        """Start again after `kill` or `stop`."""
        self.process = _started(self.program, self.log)

    def stop(self) -> None:
        """Orderly end."""
        _finish(self.process)


@contextmanager
def running(
    program: Program, directory: Path, url: str | None = None, start_s: float = START_S
) -> Iterator[RunningServer]:
    """Run one server, which is ready within `start_s`, for the length of a `with` block."""
    log = directory / f"{program.name}.log"
    server = RunningServer(program, log, _started(program, log, start_s), url or program.url)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_nats(directory: Path) -> Iterator[RunningServer]:
    port, monitor_port = free_ports(2)
    with running(nats_server(directory / "nats", port, monitor_port), directory) as server:
        yield server


@contextmanager
def running_clickhouse(directory: Path) -> Iterator[RunningServer]:
    (port,) = free_ports(1)
    program = clickhouse_server(directory / "clickhouse", port, PASSWORD)
    with running(program, directory, clickhouse_url(port, PASSWORD)) as server:
        yield server


@contextmanager
def running_s3(directory: Path) -> Iterator[RunningServer]:
    (port,) = free_ports(1)
    with running(seaweed_s3(directory / "s3", port, ACCESS_KEY, SECRET_KEY), directory) as server:
        yield server


def chosen_server(name: str, directory: Path) -> AbstractContextManager[Server]:
    """One server, of the kind that `RATCHET_TEST_SERVERS` chooses."""
    embedded = {"nats": running_nats, "clickhouse": running_clickhouse, "s3": running_s3}
    if not in_containers(os.environ):
        return embedded[name](directory)
    specs = {
        "nats": nats_container,
        "clickhouse": clickhouse_container,
        "s3": lambda: s3_container(ACCESS_KEY, SECRET_KEY),
    }
    return running_container(specs[name]())


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[Server]:
    """A broker with empty streams, for this test alone (it starts in a fraction of a second)."""
    with chosen_server("nats", tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One warehouse for the whole run; tests keep apart by database."""
    with chosen_server("clickhouse", tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One object store for the whole run; tests keep apart by bucket."""
    with chosen_server("s3", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def shared_settings(nats: Server, clickhouse: Server, s3: Server, tmp_path: Path) -> SharedSettings:
    """Settings for all three servers: a broker, a database and a bucket that no other test uses.

    Streams, buckets and tables are not made yet: `Bus.ensure_streams`, `Objects.ensure_bucket`, `Warehouse.migrate`.
    """
    name = f"t{next(_numbers)}{uuid.uuid4().hex[:8]}"
    return s3_settings(
        s3,
        name,
        nats_url=nats.url,
        clickhouse_url=clickhouse.url,
        clickhouse_database=name,
        data_dir=tmp_path / "data",
        health_port=0,
    )


def s3_settings(s3: Server, bucket: str, **others: Any) -> SharedSettings:
    """Settings for a bucket of the object store; `others` are further settings."""
    return SharedSettings(
        s3_endpoint=s3.url, s3_access_key=ACCESS_KEY, s3_secret_key=SECRET_KEY, s3_bucket=bucket, **others
    )


def variables(shared: SharedSettings) -> dict[str, str]:
    """The environment variables that give a service or a command the settings `shared`."""
    members = shared.model_dump(mode="json", exclude_none=True).items()
    return {PREFIX + name.upper(): value if isinstance(value, str) else json.dumps(value) for name, value in members}


def _started(program: Program, log: Path, start_s: float = START_S) -> Process:
    process = Process.start(program, log)
    try:
        _wait(process.wait_ready(start_s))
    except BaseException:
        _finish(process)
        raise
    return process


def _finish(process: Process) -> None:
    _wait(process.stop())


def _wait(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end from synchronous code, also when this thread already runs an event loop."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
