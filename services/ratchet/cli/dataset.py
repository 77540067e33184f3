"""`ratchet dataset`: snapshots that jobs learned from, and the rows that a job would learn from now."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ratchet.bus.message import encode
from ratchet.cli.api import get, post, segment
from ratchet.cli.connections import objects_of, settings_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.jobs import dataset_request
from ratchet.cli.options import AsJson, Directory, RoleOption
from ratchet.cli.output import console, print_answer, print_table, progress
from ratchet.contract.http.jobs import JobOut, PreviewOut
from ratchet.contract.snapshot import ROWS, SnapshotManifest
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.parquet import read_rows
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Rejected
from ratchet.service.discovery import DEFAULT_DIRECTORY
from ratchet.service.files import staged

app = typer.Typer(no_args_is_help=True)

JobOrUri = Annotated[str, typer.Argument(help="A job's id, or the s3:// uri of a snapshot's manifest.")]

_NAMED = re.compile(r"s3://[^/]+/(?:.+/)?([0-9a-f]{64})\.json")
"""Manifests are named by their digest."""
PREVIEW_S = 600.0
"""A preview makes all rows, which takes a while for many trajectories."""


@app.command()
def show(job_or_uri: JobOrUri, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Show a snapshot: filters, counts, digests, raters and sources."""
    snapshot = find_snapshot(locate(directory), job_or_uri)
    document = {"uri": snapshot.ref.uri, "digest": snapshot.ref.digest, "manifest": snapshot.manifest}
    print_answer(document, as_json, lambda: show_snapshot(snapshot))


@app.command()
def preview(
    role: RoleOption = "default",
    algorithm: Annotated[str, typer.Option(help="sft, rloo, ppo, dpo, kto, ...: it decides on the format.")] = "sft",
    samples: Annotated[int, typer.Option(min=1, help="Most rows.")] = 1000,
    min_reward: Annotated[float | None, typer.Option(help="Only trajectories with at least this reward.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Only trajectories with at most so many turns.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Only this source, repeatable.")] = None,
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain, repeatable.")] = None,
    exclude_profile: Annotated[list[str] | None, typer.Option(help="Without this profile, repeatable.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only from this instant on.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this instant.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show the rows that a job would take if it started now, and those it would leave out; nothing is created."""
    dates = {"start": since, "end": until}  # without a zone: this machine's time
    chosen = dataset_request(
        samples,
        min_reward=min_reward,
        max_trajectory_length=max_length,
        sources=source or None,
        task_domains=domain or None,
        exclude_subordinate_profiles=exclude_profile or None,
        date_range={name: at.astimezone().isoformat() for name, at in dates.items() if at is not None} or None,
    )
    with progress("choosing rows", quiet=as_json):
        body = {"role": role, "algorithm": algorithm, "dataset": chosen}
        answer = post(locate(directory), "coordinator", "/v1/jobs/preview", PreviewOut, body, timeout_s=PREVIEW_S)
    document = {"role": role, "algorithm": algorithm, "preview": answer}
    print_answer(document, as_json, lambda: show_preview(role, answer))


@app.command()
def export(
    job_or_uri: JobOrUri,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Ends in .parquet or .jsonl, which decides on the format.")
    ],
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Write a snapshot's rows to a file, verified by digest."""
    if output.suffix not in (".parquet", ".jsonl"):
        raise typer.BadParameter(f"{output} must end in .parquet or .jsonl")
    endpoints = locate(directory)
    snapshot = find_snapshot(endpoints, job_or_uri)
    rows = write_rows(endpoints, snapshot, output)
    document = {"file": str(output), "rows": rows, "digest": snapshot.ref.digest}
    print_answer(document, as_json, f"{rows} rows ({snapshot.manifest.format}) written to {output}")


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A verified snapshot."""

    ref: SnapshotRef
    manifest: SnapshotManifest


def find_snapshot(endpoints: Endpoints, job_or_uri: str) -> StoredSnapshot:
    """The snapshot of a job, or behind a manifest's uri.

    Raises `typer.BadParameter`, `NotFound`, `Rejected` or `DigestMismatch`.
    """
    if not job_or_uri.startswith("s3://"):
        job = get(endpoints, "coordinator", f"/v1/jobs/{segment(job_or_uri)}", JobOut)
        if job.snapshot is None:
            raise Rejected(f"job {job_or_uri} is {job.state} and has no snapshot")
        ref = job.snapshot
    elif (named := _NAMED.fullmatch(job_or_uri)) is not None:
        ref = SnapshotRef(uri=job_or_uri, digest=named[1])
    else:
        form = "s3://<bucket>/snapshots/<sha256>.json"
        raise typer.BadParameter(f"{job_or_uri} is not the uri of a snapshot's manifest, {form}")
    return StoredSnapshot(ref, Snapshots(objects_of(endpoints), settings_of(endpoints).s3_bucket).manifest(ref))


def write_rows(endpoints: Endpoints, snapshot: StoredSnapshot, file: Path) -> int:
    """Verify the rows' digest and write them to `file` in the format of its suffix; returns their number.

    Raises `Rejected` for rows that this version cannot write as lines.
    """
    objects, parquet = objects_of(endpoints), snapshot.manifest.parquet
    if file.suffix == ".parquet":
        objects.get_file(parquet.uri, file, parquet.sha256)
        return snapshot.manifest.rows
    kind = ROWS.get(snapshot.manifest.format)
    if kind is None:
        raise Rejected(f"{snapshot.ref.uri} holds {snapshot.manifest.format}, which this version cannot read")
    with tempfile.TemporaryDirectory(prefix="ratchet-dataset-") as directory:
        rows = Path(directory) / "rows.parquet"
        objects.get_file(parquet.uri, rows, parquet.sha256)
        with staged(file) as partial, partial.open("wb") as lines:
            return sum(lines.write(encode(row) + b"\n") > 0 for row in read_rows(rows, kind))


def show_snapshot(snapshot: StoredSnapshot) -> None:
    """The manifest for people."""
    manifest = snapshot.manifest
    facts = [
        ("uri", snapshot.ref.uri),
        ("digest", snapshot.ref.digest),
        ("rows", f"{manifest.rows} {manifest.format}"),
        ("role", manifest.role),
        ("job", f"{manifest.training_job_id} ({manifest.algorithm})"),
        ("created", manifest.created_at),
        ("continues", manifest.parent_policy),
        ("filters", _words(manifest.filters)),
        ("sample size", manifest.sample_size),
        ("reward", f"{manifest.reward_function or '-'} ({manifest.reward_transform})"),
        ("sources", _words(manifest.sources or {})),
        ("raters", _words(manifest.raters or {})),
        ("left out", _words(manifest.left_out)),
        ("trajectories", len(manifest.trajectories)),
        ("preferences", len(manifest.preferences or ())),
        ("seen up to", _words(manifest.watermarks)),
        ("rows' digest", manifest.parquet.sha256),
        ("bytes", manifest.parquet.size),
    ]
    print_table(("what", "value"), facts, "")


def show_preview(role: str, preview: PreviewOut) -> None:
    """The preview for people."""
    facts = [
        ("rows", f"{preview.rows} {preview.format}"),
        ("role", role),
        ("sources", _words(preview.sources)),
        ("left out", _words(preview.left_out)),
        ("without a reward yet", preview.waiting or None),
        ("reward", preview.reward_function or None),
        ("seen up to", _words(preview.watermarks)),
    ]
    print_table(("what", "value"), facts, "")
    if preview.refused:
        console.print(f"a job would be refused: {preview.refused}", markup=False)


def _words(counts: Mapping[str, object]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in counts.items()) or None
