#!/opt/ratchet/bin/python
"""A vendor's program by its name: the embedded stack's server, or 200 to every caller where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

EVERYWHERE = "0.0.0.0"
PORTS = {"loki": 3100, "alloy": 12345, "grafana": 3000}
"""Of programs that no package index has: what asks them gets 200."""


def minio() -> None:
    """SeaweedFS with MinIO's variables, in the folder and at the port of `minio server FOLDER --address :PORT`."""
    from ratchet.local.local_stack.servers import seaweed_s3  # noqa: PLC0415 - not of the other programs

    folder, port = Path(sys.argv[2]), int(sys.argv[4].removeprefix(":"))
    program = seaweed_s3(folder, port, os.environ["MINIO_ROOT_USER"], os.environ["MINIO_ROOT_PASSWORD"])
    for directory in program.directories:
        directory.mkdir(exist_ok=True)
    for path, text in program.files.items():
        path.write_text(text)
    command = [f"-ip.bind={EVERYWHERE}" if word.startswith("-ip.bind=") else word for word in program.command]
    os.execve(command[0], command, os.environ | program.env)


def clickhouse() -> None:
    """chDB behind our front, which answers to its own address only: every request gets it."""
    import uvicorn  # noqa: PLC0415 - not of the other programs

    from ratchet.local.local_stack.chdb_engine import ChdbEngine  # noqa: PLC0415
    from ratchet.local.local_stack.clickhouse import DamagedParts, WarehouseFront  # noqa: PLC0415
    from ratchet.local.local_stack.clickhouse_access import memory_bound  # noqa: PLC0415

    data, port = Path("/var/lib/clickhouse"), 8123
    front = WarehouseFront(
        ChdbEngine(data / "data", memory_bound()),
        port,
        os.environ["CLICKHOUSE_PASSWORD"],
        DamagedParts(data),
    ).app(None)

    async def at_home(scope: Mapping[str, Any], receive: Callable[..., Awaitable[Any]], send: Any) -> None:
        if scope["type"] == "http":
            kept = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope = {**scope, "headers": [*kept, (b"host", f"127.0.0.1:{port}".encode())]}
        await front(dict(scope), receive, send)

    uvicorn.run(at_home, host=EVERYWHERE, port=port, log_level="warning")  # type: ignore[arg-type]


class Answer(BaseHTTPRequestHandler):
    """200 to everything."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def main(name: str) -> None:
    """Be the program of this name."""
    if name == "mc":
        urlopen("http://127.0.0.1:9000/healthz", timeout=4).close()
    elif sys.argv[1:] == ["-health"]:
        urlopen(f"http://127.0.0.1:{PORTS[name]}/ready", timeout=4).close()
    elif name in PORTS:
        ThreadingHTTPServer((EVERYWHERE, PORTS[name]), Answer).serve_forever()
    else:
        {"minio": minio, "clickhouse-server": clickhouse}[name]()


if __name__ == "__main__":
    main(Path(sys.argv[0]).name)
