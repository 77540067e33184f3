"""A real MLflow server on SQLite, from the environment that `make mlflow` has made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ratchet.local.local_stack.ports import free_port
from ratchet.local.local_stack.servers import mlflow_server
from tests.support.compose import REPOSITORY
from tests.support.servers import RunningServer, running

PROGRAM = Path(os.environ.get("MLFLOW_PROGRAM", REPOSITORY / ".mlflow/bin/mlflow"))


@contextmanager
def running_mlflow(directory: Path) -> Iterator[RunningServer]:
    """Run a server whose data is in `directory`."""
    with running(mlflow_server(PROGRAM, directory / "data", free_port()), directory) as server:
        yield server
