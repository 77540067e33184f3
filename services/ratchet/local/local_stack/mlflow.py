"""An MLflow server as a program, for the experiment tracker: on SQLite, from an environment of its own."""

from __future__ import annotations

from pathlib import Path

from ratchet.core.errors import ConfigError
from ratchet.local.local_stack.ports import LOOPBACK
from ratchet.local.local_stack.program import Program


def mlflow_server(program: Path, data_dir: Path, port: int) -> Program:
    """The server, with its database and the files of runs in `data_dir`. Raises `ConfigError` without its program."""
    if not program.is_file():
        raise ConfigError(f"there is no MLflow at {program}: `make mlflow` makes .mlflow/bin/mlflow")
    url, data = f"http://{LOOPBACK}:{port}", data_dir.resolve()
    return Program(
        name="mlflow",
        command=(
            str(program.absolute()),
            "server",
            f"--host={LOOPBACK}",
            f"--port={port}",
            "--workers=1",
            f"--backend-store-uri=sqlite:///{data}/mlflow.db",
            f"--artifacts-destination={data}/files",
        ),
        ready_url=f"{url}/health",
        url=url,
        port=port,
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
        cwd=data_dir,
        directories=(data_dir,),
    )
