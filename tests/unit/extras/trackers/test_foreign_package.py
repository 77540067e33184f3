"""A run is handed to the interpreter that has the package: what it gets, what it does not see, and how it fails."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from ratchet.core.contract.training import Artifacts
from ratchet.core.errors import Rejected, Unavailable
from ratchet.extras.trackers.domain import run_document
from ratchet.extras.trackers.foreign_package import FilesTracker, Package
from ratchet.extras.trackers.settings import Settings
from ratchet.extras.trackers.trackers import TRACKERS
from tests.support.blobs import MemoryBlobs
from tests.support.training import after, job

LINES = b'{"step": 1, "seconds": 1.0, "loss": 0.5}\n{"step": 2, "loss": null}\n'


def program(directory: Path, text: str) -> str:
    """An interpreter that runs `text` whatever it is asked to run."""
    directory.mkdir()
    path = directory / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def copied(directory: Path, text: str, state: str = "completed") -> None:
    """Copy one job with such an interpreter."""
    blobs = MemoryBlobs()
    artifacts = Artifacts(training_curves=blobs.put(LINES, "metrics", ".jsonl").uri)
    package = Package("trackio", program(directory / "bin", text), directory / "files", {"TRACKIO_DIR": "here"})
    done = job(state=state, started_at=after(1), finished_at=after(9), artifacts=artifacts)
    await FilesTracker(package, blobs, "ratchet").copy_job(done)


async def test_a_recorder_gets_one_run_and_sees_no_setting_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_S3_SECRET_KEY", "secret")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    seen = tmp_path / "seen.json"
    note = f"json.dump([json.load(sys.stdin), dict(os.environ), sys.argv[1:]], open({str(seen)!r}, 'w'))"
    await copied(tmp_path, note)
    run, environment, words = json.loads(seen.read_text())
    assert (run["project"], run["id"], run["status"]) == ("ratchet_support", job().training_job_id, "FINISHED")
    assert run["steps"] == [{"number": 1, "figures": {"seconds": 1.0, "train_loss": 0.5}}]
    assert run["config"]["learning_rate"] == "0.0001"
    assert environment["TRACKIO_DIR"] == "here"
    assert "secret" not in environment.values()
    assert (words[0], Path(words[1]).name) == ("-I", "trackio_recorder.py")


async def test_a_job_that_has_not_ended_and_one_without_a_train_step_have_no_run(tmp_path: Path) -> None:
    await copied(tmp_path, "sys.exit(1)", state="running")
    waiting = job(state="queued")
    assert run_document(waiting, "ratchet", LINES) is None
    package = Package("trackio", "/no/such/python", tmp_path / "none", {})
    failed = msgspec.structs.replace(waiting, state="failed", artifacts=None)
    await FilesTracker(package, MemoryBlobs(), "ratchet").copy_job(failed)


async def test_what_a_package_refuses_is_refused_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"^trackio: ModuleNotFoundError: No module named 'trackio'$"):
        await copied(tmp_path, "raise ModuleNotFoundError(\"No module named 'trackio'\")")


async def test_an_interpreter_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    package = Package("wandb", str(tmp_path / "python"), tmp_path / "files", {})
    document = run_document(job(state="completed", started_at=after(1)), "ratchet", LINES)
    assert document is not None
    with pytest.raises(Unavailable, match=r"wandb: cannot run .*: No such file"):
        await package.record(document)


async def test_without_settings_and_with_empty_ones_there_is_no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        for name in ("MLFLOW_URL", "TRACKIO_PYTHON", "WANDB_PYTHON"):
            if value is not None:
                monkeypatch.setenv(f"RATCHET_TRACKER_{name}", value)
        async with AsyncExitStack() as stack:
            assert [await make(Settings(), MemoryBlobs(), stack) for make in TRACKERS.values()] == [None] * 3


async def test_every_tracker_is_made_of_its_setting() -> None:
    settings = Settings(mlflow_url="http://127.0.0.1:1", trackio_python="python", wandb_python="python")
    async with AsyncExitStack() as stack:
        assert None not in [await make(settings, MemoryBlobs(), stack) for make in TRACKERS.values()]
