"""A training on this machine: `python -m ratchet.trainer_worker.training.local_run <request file>`.

It makes a job directory of files in TRL's format, and runs what a worker would run (`child`): the same events on its
standard output, a checkpoint at SIGTERM, the end with the end of its standard input.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ratchet.bus.message import decode, encode, named_id
from ratchet.core.contract.local_training import LocalTraining
from ratchet.core.contract.policy_manifest import ArtifactFile, PolicyManifest
from ratchet.core.contract.snapshot import PairRow
from ratchet.core.contract.training import ResourceUsage
from ratchet.core.datasets.parquet import RowWriter
from ratchet.core.service.files import write_whole
from ratchet.trainer_worker.errors import DataUnusable
from ratchet.trainer_worker.job import (
    CHECKPOINTS,
    DOCUMENTS,
    METRICS_FILE,
    RESULT,
    TEMPORARY,
    Finished,
    JobSpec,
    encode_event,
    write_job,
)
from ratchet.trainer_worker.model_card import model_card
from ratchet.trainer_worker.training import child
from ratchet.trainer_worker.training.checkpoints import Checkpoint, CheckpointStore

DATASET, CARD = "dataset.parquet", "README.md"
BLOCK = 500
"""Pairs that are copied at a time."""


def main(request_file: Path) -> int:
    """Train; returns the exit status, 0 also for a stop on request."""
    request = decode(request_file.read_bytes(), LocalTraining)
    directory = Path(request.output)
    # Before it writes anything: the next command in this directory may begin as soon as this one's has ended.
    threading.Thread(target=child.end_with_parent, daemon=True).start()
    try:
        prepare(request, directory)
    except Exception as error:  # noqa: BLE001 - the boundary of the process, as in `child`
        sys.stdout.buffer.write(encode_event(child.failed(error)))
        return 1
    return child.main(directory, write_card)


def write_card(spec: JobSpec, finished: Finished) -> None:
    """Put the model card beside the other documents."""
    made = Path(finished.directory)
    files = [
        ArtifactFile(name=file.name, uri=file.name, sha256="", size=file.stat().st_size) for file in made.iterdir()
    ]
    manifest = PolicyManifest(
        kind=finished.kind,
        base_model=spec.base_name,
        files=files,
        role=made.parent.name,
        created_at=datetime.now(UTC),
        algorithm=spec.config.algorithm,
        hyperparameters=msgspec.to_builtins(spec.config.hyperparameters),
        training_samples=finished.samples,
        dtype=finished.dtype,
        metrics=finished.metrics,
    )
    usage = ResourceUsage(peak_memory_gb=finished.peak_memory_gb)
    card = model_card(manifest, finished.evaluation, usage, finished.health_stop)
    (made.parent / DOCUMENTS / CARD).write_text(card)


def prepare(request: LocalTraining, directory: Path) -> None:
    """Write the data and the job file into `directory`. Raises `DataUnusable`."""
    with closing(RowWriter(directory / DATASET, PairRow)) as writer:
        train, held_out = (_copied(file, writer) for file in (request.train, request.held_out))
    if not train:
        raise DataUnusable(f"{request.train} holds no pairs")
    config, name = request.config, named_id("local training", msgspec.json.encode(request).decode())
    newest = take_up(directory, CheckpointStore(directory / CHECKPOINTS, name, 1, config.algorithm))
    spec = JobSpec(
        training_job_id=name,
        attempt=1,
        role="default",
        config=config,
        dataset=str(directory / DATASET),
        base=config.base_model,
        base_name=config.base_model,
        threads=int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
        resume=str(newest.directory) if newest else None,
        loop=msgspec.structs.replace(request.loop, held_out=held_out),
    )
    write_job(directory, spec)


def take_up(directory: Path, store: CheckpointStore) -> Checkpoint | None:
    """The newest checkpoint of a training that died. What it left half done goes, and figures of what is done again."""
    for left in (RESULT, DOCUMENTS, TEMPORARY):
        shutil.rmtree(directory / left, ignore_errors=True)
    newest = store.newest()
    metrics, step = directory / METRICS_FILE, newest.manifest.step if newest else 0
    if metrics.is_file():
        lines = [line for line in metrics.read_bytes().splitlines() if line.endswith(b"}")]
        write_whole(metrics, b"".join(line + b"\n" for line in lines if json.loads(line)["step"] <= step))
    return newest


def _copied(file: str | None, writer: RowWriter[PairRow]) -> int:
    """Write the pairs of a file as rows; returns their number."""
    pairs, count = pairs_in(Path(file)) if file else iter(()), 0
    while rows := list(islice(pairs, BLOCK)):
        writer.add(rows)
        count += len(rows)
    return count


def pairs_in(file: Path) -> Iterator[PairRow]:
    """The pairs of a file, blank lines aside. Raises `DataUnusable` with the number of a line that holds no pair."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                members: Any = json.loads(line)
                row = {name: _messages(members[name], name) for name in ("prompt", "chosen", "rejected")}
                pair = msgspec.convert(
                    {"preference_id": f"{file.stem}-{number}", "tools": members.get("tools") or [], "source": "human"}
                    | row,
                    PairRow,
                )
                encode(pair)  # half of a surrogate pair is a string of Python's, but no text
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise DataUnusable(
                    f"line {number} of {file} is not a pair of prompt, chosen and rejected: {error}"
                ) from error
            yield pair


def _messages(value: Any, name: str) -> Any:
    role = "user" if name == "prompt" else "assistant"
    return [{"role": role, "content": value}] if isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
