"""One of the services of the catalog as a process of its own, which tests may kill and start again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.catalog import ALL_SERVICES
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import Program
from tests.support.servers import RunningServer, running, variables


@contextmanager
def service_process(short: str, shared: SharedSettings, folder: Path, **env: str) -> Iterator[RunningServer]:
    """The service that the catalog calls `short`, ready, on a free port and with its data in `folder`."""
    spec = next(spec for spec in ALL_SERVICES if spec.short == short)
    port, health_port = free_ports(2)
    program = Program(
        name=spec.name,
        command=(sys.executable, "-m", spec.module),
        ready_url=f"http://127.0.0.1:{health_port}/readyz",
        url=f"http://127.0.0.1:{port}",
        port=port,
        health_port=health_port,
        env={
            **variables(shared),
            "RATCHET_DATA_DIR": str(folder / spec.name),
            "RATCHET_HEALTH_PORT": str(health_port),
            **({spec.port_variable: str(port)} if spec.port else {}),
            **spec.env,
            **env,
        },
        stop_s=30.0,
    )
    with running(program, folder) as server:
        yield server
