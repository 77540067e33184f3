"""ClickHouse's HTTP interface in front of chDB: `-m ratchet.local.local_stack.clickhouse --data DIR --port PORT`.

Good enough for `clickhouse-connect` unchanged: native inserts, parameters, settings per query, compression (lz4),
error codes. It listens on the loopback address only, and knows one user, whose password is in the environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import lz4.frame
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ratchet.bus.tasks import end
from ratchet.core.errors import RatchetError
from ratchet.core.service.tls import ServerCertificate
from ratchet.local.local_stack.chdb_engine import Answer, ChdbEngine
from ratchet.local.local_stack.clickhouse_access import PASSWORD_VARIABLE, USER, memory_bound, refusal
from ratchet.local.local_stack.clickhouse_statement import (
    ProtocolError,
    Statement,
    decoded,
    engine_error,
    form_parameters,
    statement,
)
from ratchet.local.local_stack.ports import LOOPBACK

WORKERS = 4
"""Statements at a time. The engine spreads one large query over the cores by itself."""

COMPRESS_FROM_BYTES = 16 * 1024
"""Below this, compressing an answer costs more than it saves."""


DAMAGED = re.compile(r"Code: (?:32|33|40|226|228|246|271|432)\b(?:.*\(while reading from part (\S+))?", re.DOTALL)
"""An error over a part on disk that cannot be read. That of an index that cannot be read names no part."""


class DamagedParts:
    """The parts that could not be read. A start puts aside those that it finds damaged, so one is asked for; but only
    once for each part: where it does not help, the next one would not either."""

    def __init__(self, data: Path) -> None:
        """`data`: the engine's directory; a file in it keeps the names of those for which a start was asked for."""
        self._data = data
        self._file = data / "damaged-parts.txt"
        self._asked = set(self._file.read_text().splitlines()) if self._file.exists() else set[str]()
        self.unfit: str | None = None
        """Why a start is asked for."""

    def note(self, error: str) -> None:
        """Take note of the part that an error names, or else of those that a full disk left without content."""
        match = DAMAGED.search(error)
        if match is None:
            return
        for part in [match[1]] if match[1] else self._emptied():
            if (identity := _identity(part)) in self._asked:
                continue
            self._asked.add(identity)
            self.unfit = f"a part is damaged, and put aside at the next start: {part}"
            with suppress(OSError):  # a full disk: asked once more at worst
                self._file.write_text("".join(f"{asked}\n" for asked in sorted(self._asked)))

    def _emptied(self) -> list[str]:
        emptied: list[str] = []
        with suppress(FileNotFoundError):  # merged away or dropped meanwhile: the next error looks again
            for file in self._data.glob("store/*/*/*/checksums.txt"):
                being_written = "tmp_" in file.parent.name
                if not being_written and not file.stat().st_size:
                    emptied.append(str(file.parent))
        return emptied


def _identity(part: str) -> str:
    """A part's folder: another part may get its name later."""
    with suppress(OSError):
        return f"{part} {Path(part).stat().st_ino}"
    return part


class WarehouseFront:
    """The HTTP handlers around one engine."""

    def __init__(self, engine: ChdbEngine, port: int, password: str, damaged: DamagedParts) -> None:
        self._engine = engine
        self._port = port
        self._password = password
        self._damaged = damaged
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="chdb")

    async def ping(self, _request: Request) -> Response:
        unfit = self._damaged.unfit
        return PlainTextResponse("Ok.\n") if unfit is None else PlainTextResponse(unfit, 503)

    async def query(self, request: Request) -> Response:
        """One statement. GET only reads."""
        refused = refusal(request.headers, self._port, self._password)
        if refused is not None:
            return _failure(ProtocolError(516, "AUTHENTICATION_FAILED", refused))
        body = await request.body()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, self._answer, request, body)
        except (RuntimeError, ProtocolError) as error:
            return _failure(error)

    def _answer(self, request: Request, body: bytes) -> Response:
        """All that takes time: unpack, parse, execute, pack."""
        body = decoded(body, request.headers.get("content-encoding", ""))
        parameters = dict(request.query_params)
        content_type = request.headers.get("content-type", "")
        if content_type.startswith("multipart/form-data"):
            parameters |= form_parameters(content_type, body)
            body = b""
        output_format = request.headers.get("x-clickhouse-format")
        asked = statement(parameters, body, output_format, read_only=request.method != "POST")
        try:
            return _response(request, asked, self._engine.execute(asked))
        except RuntimeError as error:  # chDB raises it for everything the engine refuses
            self._damaged.note(str(error))
            raise

    def close(self) -> None:
        """Let running statements end, then close the engine."""
        self._workers.shutdown(wait=True)
        self._engine.close()

    def app(self, certificate: ServerCertificate | None) -> Starlette:
        """The ASGI application; closes the engine when the server stops. It follows the certificate's renewals."""

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
            following = asyncio.create_task(certificate.follow()) if certificate is not None else None
            yield
            if following is not None:
                await end(following)
            await asyncio.to_thread(self.close)

        routes = [
            Route("/ping", self.ping, methods=["GET", "HEAD"]),
            Route("/{path:path}", self.query, methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes, lifespan=lifespan)


def _failure(error: Exception) -> Response:
    status, code, text = engine_error(str(error))
    return PlainTextResponse(text, status, headers={"X-ClickHouse-Exception-Code": code})


def _response(request: Request, asked: Statement, answer: Answer) -> Response:
    summary = {
        "read_rows": str(answer.rows_read),
        "read_bytes": str(answer.bytes_read),
        "written_rows": str(answer.rows_written),
        "elapsed_ns": str(int(answer.elapsed_s * 1e9)),
    }
    headers = {
        "X-ClickHouse-Summary": json.dumps(summary),
        "X-ClickHouse-Query-Id": request.query_params.get("query_id", ""),
        "X-ClickHouse-Timezone": "UTC",
    }
    if asked.returns_rows:
        headers["X-ClickHouse-Format"] = asked.output_format
    body = answer.body
    compress = request.query_params.get("enable_http_compression") == "1" and len(body) >= COMPRESS_FROM_BYTES
    if compress and "lz4" in request.headers.get("accept-encoding", ""):
        body = bytes(lz4.frame.compress(body))  # pyright: ignore[reportUnknownMemberType,reportUnknownArgumentType]
        headers["Content-Encoding"] = "lz4"
    return Response(body, headers=headers, media_type="application/octet-stream")


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="ratchet.local.local_stack.clickhouse", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="data directory, owned by this process alone")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--tls-file", type=Path, help="PEM file with a key and its certificate")
    options = parser.parse_args(argv)
    password = os.environ.get(PASSWORD_VARIABLE)
    if not password:
        sys.stderr.write(f"{PASSWORD_VARIABLE} is needed: the password of the user {USER}\n")
        return 1
    try:
        certificate = ServerCertificate(options.tls_file) if options.tls_file is not None else None
        engine = ChdbEngine(options.data, memory_bound())
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    config = uvicorn.Config(
        WarehouseFront(engine, options.port, password, DamagedParts(options.data)).app(certificate),
        host=LOOPBACK,
        port=options.port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=120,
        timeout_graceful_shutdown=8,
        ssl_context_factory=(lambda _config, _default: certificate.context) if certificate else None,
    )
    uvicorn.Server(config).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
