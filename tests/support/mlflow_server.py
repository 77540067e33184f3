"""A real MLflow server on SQLite, from the environment that `make mlflow` has made."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from ratchet.local_stack.ports import free_port
from tests.support.compose import REPOSITORY

PROGRAM = Path(os.environ.get("MLFLOW_PROGRAM", REPOSITORY / ".mlflow/bin/mlflow"))
PATIENCE_S = 120.0


@contextmanager
def running_mlflow(directory: Path) -> Iterator[str]:
    """Run a server whose data is in `directory`; yields its url."""
    port = free_port()
    command = [PROGRAM, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    places = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db", "--artifacts-destination", directory / "files"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (directory / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *places], stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}", directory / "mlflow.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 15)
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])
