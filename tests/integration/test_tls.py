"""TLS of the stack's servers: with the local authority's certificates clients get through, and in no other way."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.settings import BusSettings
from ratchet.bus.testing import eventually
from ratchet.core.contract.http.keys import KeysOut
from ratchet.core.errors import RatchetError
from ratchet.core.service.asgi import Handler, JsonApi, Request, json_response
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores import objects
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.certificates import AUTHORITIES, Certificates
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.process import Process
from ratchet.local.local_stack.program import Program
from ratchet.local.local_stack.servers import clickhouse_server, clickhouse_url, nats_server, seaweed_s3
from tests.support.servers import ACCESS_KEY, PASSWORD, SECRET_KEY

SERVERS = ("nats", "clickhouse", "s3", "http")
NOW = datetime.now(UTC)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path / "tls")
    made.make(SERVERS, (), NOW)
    return made


@pytest.fixture(autouse=True)
def trust(monkeypatch: pytest.MonkeyPatch) -> Callable[[Certificates], None]:
    """Have the clients of this process trust an authority."""

    def chosen(certificates: Certificates) -> None:
        for name in AUTHORITIES:
            monkeypatch.setenv(name, str(certificates.trusted))
        objects._client_of.cache_clear()  # it lives as long as its process, as the variables do

    return chosen


def program_of(server: str, folder: Path, tls_file: Path) -> Program:
    port, other = free_ports(2)
    match server:
        case "nats":
            return nats_server(folder, port, other, tls_file=tls_file)
        case "s3":
            return seaweed_s3(folder, port, ACCESS_KEY, SECRET_KEY, tls_file=tls_file)
        case _:
            return clickhouse_server(folder, port, PASSWORD, tls_file=tls_file)


async def ask(server: str, scheme_and_host: str, port: int) -> None:
    """As our own clients do. Raises an error of the tree where they do not get through."""
    url = f"{scheme_and_host}:{port}"
    match server:
        case "nats":
            patience = Patience(deadline_s=5.0, quiet=True)
            bus = await Bus.connect(BusSettings(url), name="test", contracts=load_contracts(), patience=patience)
            await bus.close()
        case "clickhouse":
            scheme, host = scheme_and_host.split("://")
            address = clickhouse_url(port, PASSWORD, scheme).replace("127.0.0.1", host)
            await (await Warehouse.connect(SharedSettings(clickhouse_url=address))).close()
        case "s3":
            settings = SharedSettings(s3_endpoint=url, s3_access_key=ACCESS_KEY, s3_secret_key=SECRET_KEY)
            await asyncio.to_thread(Objects(settings).ping)
        case _:
            async with AsyncApiClient(Peer("the server", url)) as client:
                await client.ask("GET", "/v1/keys", KeysOut)


async def refused(server: str, scheme_and_host: str, port: int) -> bool:
    try:
        await ask(server, scheme_and_host, port)
    except (RatchetError, OSError):
        return True
    return False


@contextmanager
def started(program: Program, folder: Path) -> Iterator[Process]:
    """Whether or not the clients of this process trust it."""
    process = Process.start(program, folder / f"{program.name}.log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def keys(_method: str, _path: str) -> Handler:
    async def answer(_: Request) -> object:
        return json_response({"keys": []})

    return answer  # type: ignore[return-value]  # a handler's answer is a response


@asynccontextmanager
async def serving(server: str, folder: Path, tls_file: Path) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """A server's port, and what has it read a renewed certificate where it does not see to that itself."""
    if server == "http":
        own = HttpServer(JsonApi(keys, 1000), "127.0.0.1", 0, tls_file=tls_file)
        running = asyncio.create_task(own.run())
        yield own.port, lambda: None
        await own.stop()
        await running
        return
    program = program_of(server, folder, tls_file)
    run: AbstractContextManager[Process] = started(program, folder.parent)
    with run as process:
        await eventually(lambda: asyncio.to_thread(listens, program.port))
        yield program.port, lambda: os.kill(process.pid, signal.SIGHUP) if server == "nats" else None


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def shown(server: str, port: int) -> bytes | None:
    """The certificate that a server shows."""
    context = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        if server == "nats":
            plain.recv(4096)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
            return encrypted.getpeercert(binary_form=True)


def takes_plain_text(server: str, port: int) -> bool:
    """Whether a client that speaks no TLS gets an answer to its question."""
    question = b"CONNECT {}\r\nPING\r\n" if server == "nats" else b"GET /ping HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    answers = b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain, suppress(ConnectionError):
        plain.sendall(question)
        while part := plain.recv(4096):
            answers += part
    return b"PONG" in answers or b"200" in answers.partition(b"\n")[0]


def tls_of(server: str) -> str:
    return "tls" if server == "nats" else "https"


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
async def test_server_takes_its_clients_over_tls_alone(
    server: str, certificates: Certificates, trust: Callable[[Certificates], None], tmp_path: Path
) -> None:
    tls, other = tls_of(server), Certificates(tmp_path / "other")
    other.make(["nats"], (), NOW)
    trust(certificates)
    certificates.sign(server, ["127.0.0.1"], NOW, 1)
    async with serving(server, tmp_path / server, certificates.file(server)) as (port, _):
        if server == "s3":  # it takes a moment from its port to its bucket
            await eventually(lambda: not_missing(server, tls, port))
        assert not await refused(server, f"{tls}://127.0.0.1", port)
        assert not await asyncio.to_thread(takes_plain_text, server, port)
        assert await refused(server, f"{tls}://localhost", port), "another name"
        trust(other)
        assert await refused(server, f"{tls}://127.0.0.1", port), "another authority"


async def not_missing(server: str, tls: str, port: int) -> bool:
    settings = SharedSettings(
        s3_endpoint=f"{tls}://127.0.0.1:{port}", s3_access_key=ACCESS_KEY, s3_secret_key=SECRET_KEY
    )
    try:
        await asyncio.to_thread(Objects(settings).ensure_bucket)
    except RatchetError:
        return False
    return not await refused(server, f"{tls}://127.0.0.1", port)


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
async def test_expired_certificate_is_refused(
    server: str, certificates: Certificates, trust: Callable[[Certificates], None], tmp_path: Path
) -> None:
    trust(certificates)
    certificates.sign(server, ["127.0.0.1"], NOW - timedelta(days=9), 1)
    async with serving(server, tmp_path / server, certificates.file(server)) as (port, _):
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await asyncio.to_thread(shown, server, port)
        assert await refused(server, f"{tls_of(server)}://127.0.0.1", port)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["nats", "clickhouse", "http"])
async def test_renewed_certificate_is_shown_without_a_restart(
    server: str, certificates: Certificates, trust: Callable[[Certificates], None], tmp_path: Path
) -> None:
    trust(certificates)
    async with serving(server, tmp_path / server, certificates.file(server)) as (port, reload):
        before, gaps = await asyncio.to_thread(shown, server, port), 0
        certificates.renew([server], NOW)
        reload()

        async def is_renewed() -> bool:
            nonlocal gaps
            gaps += await refused(server, f"{tls_of(server)}://127.0.0.1", port)
            return await asyncio.to_thread(shown, server, port) != before

        await eventually(is_renewed)
        assert gaps == 0
