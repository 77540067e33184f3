"""The gateway as a process of its own: it may be killed, starved of files and stopped by a signal."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import Program
from tests.support.servers import RunningServer, running


@contextmanager
def gateway_process(
    nats_url: str, engine_url: str, folder: Path, *, files: int | None = None, **env: str
) -> Iterator[RunningServer]:
    """`python -m ratchet.gateway` on a free port, ready; `files`: how many it may open."""
    port, health_port = free_ports(2)
    command = (sys.executable, "-m", "ratchet.gateway")
    if files is not None:
        command = ("/bin/sh", "-c", f"ulimit -n {files} && exec {shlex.join(command)}")
    settings = {
        "RATCHET_NATS_URL": nats_url,
        "RATCHET_DATA_DIR": str(folder / "data"),
        "RATCHET_HEALTH_PORT": str(health_port),
        "RATCHET_GATEWAY_PORT": str(port),
        "RATCHET_ENGINE_URL": engine_url,
        **env,
    }
    program = Program(
        name="gateway",
        command=command,
        ready_url=f"http://127.0.0.1:{health_port}/readyz",
        url=f"http://127.0.0.1:{port}",
        port=port,
        health_port=health_port,
        env=settings,
        stop_s=30.0,
    )
    with running(program, folder) as server:
        yield server


def terminate(server: RunningServer) -> None:
    """Ask it to stop, and do not wait."""
    os.kill(server.pid, signal.SIGTERM)
