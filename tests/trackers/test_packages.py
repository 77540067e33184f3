"""Jobs in the real packages of trackio and wandb, each in an environment of its own: one run, however often."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.contract.training import Artifacts
from ratchet.core.errors import Rejected
from ratchet.extras.trackers.foreign_package import FilesTracker, Package
from tests.support.blobs import MemoryBlobs
from tests.support.compose import REPOSITORY
from tests.support.training import after, job

LINES = b"".join(
    b'{"step": %d, "epoch": 1, "seconds": 1.0, "loss": %s}\n' % (n, str(1 / n).encode()) for n in (1, 2, 3)
)
READ_TRACKIO = """
import json
from trackio import SQLiteStorage as storage

project = "ratchet_support"
read = lambda name: [storage.get_logs(project, name), storage.get_run_config(project, name)]
runs = {name: read(name) for name in storage.get_runs(project)}
print(json.dumps(runs))
"""


def interpreter(name: str) -> str:
    """The interpreter of a package's environment. Skips where there is none."""
    python = Path(os.environ.get(f"{name.upper()}_PYTHON", REPOSITORY / f".{name}" / "bin" / "python"))
    if not python.exists():
        pytest.skip(f"no {name} here: `make {name}`")
    return str(python)


def stored(package: Package) -> dict[str, Any]:
    """Steps and configuration of every run, read by trackio itself."""
    words = [package.python, "-I", "-c", READ_TRACKIO]
    read = subprocess.run(words, env=dict(package.environment), capture_output=True, check=True, timeout=120)
    return json.loads(read.stdout.splitlines()[-1])


async def copy_twice(package: Package) -> str:
    """Copy a completed job, as two trackers would that were started one after the other; returns its id."""
    blobs = MemoryBlobs()
    artifacts = Artifacts(training_curves=blobs.put(LINES, "metrics", ".jsonl").uri)
    done = job(state="completed", started_at=after(1), finished_at=after(60), artifacts=artifacts)
    for _ in range(2):
        await FilesTracker(package, blobs, "ratchet").copy_job(done)
    return done.training_job_id


async def test_trackio_has_one_run_of_a_job_with_every_train_step(tmp_path: Path) -> None:
    environment = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    package = Package("trackio", interpreter("trackio"), tmp_path / "trackio", environment)
    name = await copy_twice(package)
    runs = await asyncio.to_thread(stored, package)
    assert list(runs) == [name]
    steps, config = runs[name]
    assert [(step["step"], step["train_loss"]) for step in steps] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]
    assert config["agent_role"] == "support"
    assert config["ratchet.training_job_id"] == name


async def test_wandb_has_one_offline_run_of_a_job(tmp_path: Path) -> None:
    directory = tmp_path / "wandb-files"
    environment = {"WANDB_MODE": "offline", "WANDB_DIR": str(directory)}
    package = Package("wandb", interpreter("wandb"), directory, environment)
    name = await copy_twice(package)
    (run,) = (directory / "wandb").glob("offline-run-*")
    assert run.name.endswith(name)
    assert (run / "complete").exists()
    written = (run / f"run-{name}.wandb").read_bytes()
    assert all(text in written for text in (b"ratchet_support", b"train_loss", b"agent_role"))
    (run / "complete").unlink()  # as if the recorder had been killed
    await copy_twice(package)
    assert len(list((directory / "wandb").glob("offline-run-*"))) == 1


async def test_an_interpreter_without_the_package_is_refused_in_its_own_words(tmp_path: Path) -> None:
    package = Package("wandb", interpreter("trackio"), tmp_path / "files", {"WANDB_DIR": str(tmp_path)})
    with pytest.raises(Rejected, match="wandb: ModuleNotFoundError: No module named 'wandb'"):
        await copy_twice(package)
