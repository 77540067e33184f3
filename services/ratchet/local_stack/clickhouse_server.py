"""The ClickHouse engine (chDB) behind our HTTP front, as a process of its own."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from ratchet.errors import MissingExtra
from ratchet.local_stack.clickhouse_access import PASSWORD_VARIABLE, USER
from ratchet.local_stack.ports import LOOPBACK
from ratchet.local_stack.program import Program


def clickhouse_server(data_dir: Path, port: int, password: str) -> Program:
    """The warehouse, for one user with this password."""
    if find_spec("chdb") is None:
        raise MissingExtra("embedded", "the local stack (chdb)")
    return Program(
        name="clickhouse",
        command=(
            sys.executable,
            "-m",
            "ratchet.local_stack.clickhouse",
            f"--data={data_dir.resolve()}",
            f"--port={port}",
        ),
        ready_url=f"http://{LOOPBACK}:{port}/ping",
        url=f"http://{LOOPBACK}:{port}",
        port=port,
        env={PASSWORD_VARIABLE: password},
        directories=(data_dir,),
    )


def clickhouse_url(port: int, password: str) -> str:
    """Where clients reach it, user and password included."""
    return f"http://{USER}:{password}@{LOOPBACK}:{port}"
