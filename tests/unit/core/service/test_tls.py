"""Our HTTP server with TLS: an answer larger than any buffer arrives whole."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.core.errors import ConfigError
from ratchet.core.service.asgi import Answer, Handler, JsonApi, Request, Response
from ratchet.core.service.http import HttpServer
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.local.local_stack.certificates import AUTHORITIES, Certificates

LARGE = b'"' + b"x" * 5_000_000 + b'"'


def large(_method: str, _path: str) -> Handler:
    async def answer(_: Request) -> Answer:
        return Response(200, LARGE)

    return answer


async def test_large_answer_arrives_whole_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Certificates(tmp_path / "tls")
    certificates.make(["gateway"], (), datetime.now(UTC))
    monkeypatch.setenv(AUTHORITIES[0], str(certificates.trusted))
    server = HttpServer(JsonApi(large, 1000), "127.0.0.1", 0, tls_file=certificates.file("gateway"))
    running = asyncio.create_task(server.run())
    async with AsyncApiClient(Peer("the server", f"https://127.0.0.1:{server.port}")) as client:
        assert await client.ask("GET", "/", str) == "x" * 5_000_000
    await server.stop()
    await running


def test_certificate_that_cannot_be_read_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    with pytest.raises(ConfigError, match=r"empty\.pem cannot be read"):
        HttpServer(JsonApi(large, 1000), "127.0.0.1", 0, tls_file=tmp_path / "empty.pem")
