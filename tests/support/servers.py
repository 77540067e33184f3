"""The real servers for integration tests: the broker, the warehouse and the object store, on free loopback ports.

`RATCHET_TEST_SERVERS` chooses what they are: `embedded` (the default, programs from the package index) or `containers`
(of the images that docker-compose.yml names, which needs a container engine).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from ratchet.core.resources import resource_dir
from ratchet.core.service.settings import PREFIX, SharedSettings
from ratchet.local.local_stack.ports import LOOPBACK, free_ports
from ratchet.local.local_stack.process import Process
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import (
    MAX_PAYLOAD_BYTES,
    clickhouse_server,
    clickhouse_url,
    nats_server,
    seaweed_s3,
)
from tests.support.containers import START_S, clickhouse_container, nats_container, running_container, s3_container
from tests.support.databases import Databases

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"
PASSWORD = "test-password"
"""The warehouse's."""

ACCOUNTS = 100
"""Accounts of one broker: each keeps its streams until the broker ends."""
NO_BOUND = "1000TB"
"""The broker sets aside what streams may take at most; those of all accounts take little."""

CHOICE = "RATCHET_TEST_SERVERS"

_numbers = itertools.count()


class Broker(Protocol):
    """Where a broker is."""

    @property
    def url(self) -> str: ...


class Server(Broker, Protocol):
    """A server that tests may also kill and start again, on the same port and data."""

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


@dataclass(frozen=True)
class Account:
    """A user's account on a broker that others use too: no other account has its subjects, streams and buckets."""

    url: str


def accounts(make_folder: Callable[[], Path]) -> Generator[Account]:
    """New accounts without end; the broker of the last ones ends before the next one starts.

    It is killed: an orderly end writes out thousands of streams, which are then removed.
    """
    while True:
        folder = make_folder()
        port, monitor_port = free_ports(2)
        with running(_nats_with_accounts(folder, port, monitor_port), folder) as server:
            try:
                for number in range(ACCOUNTS):
                    yield Account(f"nats://user{number}:{PASSWORD}@{LOOPBACK}:{port}")
            finally:
                server.kill()
        shutil.rmtree(folder)


def _nats_with_accounts(folder: Path, port: int, monitor_port: int) -> Program:
    """The stack's own broker and configuration, and `ACCOUNTS` accounts with one user each."""
    program = nats_server(folder / "nats", port, monitor_port)
    (config,) = program.files
    text = Template((resource_dir("deploy") / "nats" / "embedded.conf").read_text()).substitute(
        host=LOOPBACK,
        port=port,
        monitor_port=monitor_port,
        monitor_path=urlsplit(program.ready_url).path.split("/")[1],
        max_payload=MAX_PAYLOAD_BYTES,
        max_file_store=NO_BOUND,
        max_memory_store=NO_BOUND,
        store_dir=json.dumps(str(folder / "jetstream")),
        encryption="",
        users="",
        tls="",
    )
    listed = "\n".join(
        f'  user{number} {{ jetstream: enabled, users: [{{ user: "user{number}", password: "{PASSWORD}" }}] }}'
        for number in range(ACCOUNTS)
    )
    return replace(program, files={config: f"{text}\naccounts {{\n{listed}\n}}\n"})


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
    return running_container(specs[name](), directory)


@pytest.fixture(scope="session")
def broker_accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Account]]:
    """Accounts for the tests of this process."""
    with closing(accounts(lambda: tmp_path_factory.mktemp("brokers"))) as made:
        yield made


@pytest.fixture
def nats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker without streams: an account of a shared one, or, marked `own_broker`, one that the test may kill."""
    if in_containers(os.environ) or request.node.get_closest_marker("own_broker"):
        with chosen_server("nats", tmp_path) as server:
            yield server
    else:
        yield next(request.getfixturevalue("broker_accounts"))


@pytest.fixture(scope="session")
def clickhouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One warehouse for the whole run; tests keep apart by database."""
    with chosen_server("clickhouse", tmp_path_factory.mktemp("clickhouse")) as server:
        yield server
        server.kill()  # nothing reads what an orderly end would write out


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One object store for the whole run; tests keep apart by bucket."""
    with chosen_server("s3", tmp_path_factory.mktemp("s3")) as server:
        yield server
        server.kill()


@pytest.fixture(scope="session")
def databases(clickhouse: Server) -> Iterator[Databases]:
    """The warehouse's databases, for the whole run."""
    with closing(Databases(clickhouse.url)) as made:
        yield made


@pytest.fixture
def shared_settings(
    nats: Broker, clickhouse: Server, databases: Databases, s3: Server, tmp_path: Path
) -> Iterator[SharedSettings]:
    """Settings for all three servers: a broker, a database and a bucket that no other test uses.

    Nothing may be made yet: `Bus.ensure_streams`, `Objects.ensure_bucket`, `Warehouse.make_tables`.
    """
    name, database = f"t{next(_numbers)}{uuid.uuid4().hex[:8]}", databases.take()
    yield s3_settings(
        s3,
        name,
        nats_url=nats.url,
        clickhouse_url=clickhouse.url,
        clickhouse_database=database,
        data_dir=tmp_path / "data",
        health_port=0,
    )
    databases.give_back(database)


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
