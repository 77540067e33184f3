"""What the `ratchet dataset` commands do: find a snapshot, show it, write it to a file, preview one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import typer

from ratchet.bus.message import encode
from ratchet.cli.api import call, segment
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import console, print_table
from ratchet.contract.snapshot import ROWS, SnapshotManifest
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.parquet import read_rows
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Rejected
from ratchet.service.files import staged
from ratchet.stores.objects import Objects

Json = dict[str, Any]
"""A decoded answer, or a body."""

_NAMED = re.compile(r"s3://[^/]+/(?:.+/)?([0-9a-f]{64})\.json")
"""Manifests are named by their digest."""
PREVIEW_S = 600.0
"""All rows are made for a preview, which takes a while where there is much."""


@dataclass(frozen=True, slots=True)
class Found:
    """A verified snapshot."""

    ref: SnapshotRef
    manifest: SnapshotManifest


def find(endpoints: Endpoints, what: str) -> Found:
    """The snapshot of a job, or behind a manifest's uri.

    Raises `typer.BadParameter`, `NotFound`, `Rejected` or `DigestMismatch`.
    """
    ref = _ref_of_uri(what) if what.startswith("s3://") else _ref_of_job(endpoints, what)
    shared = endpoints.shared
    return Found(ref, Snapshots(Objects(shared), shared.s3_bucket).manifest(ref))


def write(endpoints: Endpoints, found: Found, file: Path) -> int:
    """Write the rows to `file`, in the format of its suffix, once their digest is verified; returns how many.

    Raises `Rejected` when lines are asked for and the file does not hold what its manifest says.
    """
    objects, parquet = Objects(endpoints.shared), found.manifest.parquet
    if file.suffix == ".parquet":
        objects.get_file(parquet.uri, file, parquet.sha256)
        return found.manifest.rows
    kind = ROWS.get(found.manifest.format)
    if kind is None:
        raise Rejected(f"{found.ref.uri} holds {found.manifest.format}, which this version cannot read")
    with tempfile.TemporaryDirectory(prefix="ratchet-dataset-") as directory:
        rows = Path(directory) / "rows.parquet"
        objects.get_file(parquet.uri, rows, parquet.sha256)
        with staged(file) as partial, partial.open("wb") as lines:
            return sum(lines.write(encode(row) + b"\n") > 0 for row in read_rows(rows, kind))


def preview(endpoints: Endpoints, role: str, algorithm: str, dataset: Json) -> Json:
    """What a job that starts now would take, as the coordinator says; nothing is created. Raises `Rejected`."""
    body = {"role": role, "algorithm": algorithm, "dataset": dataset}
    return call(endpoints, "coordinator", "POST", "/v1/jobs/preview", body, timeout_s=PREVIEW_S)


def show(found: Found) -> None:
    """The manifest for people."""
    manifest = found.manifest
    facts = [
        ("uri", found.ref.uri),
        ("digest", found.ref.digest),
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


def show_preview(role: str, found: Json) -> None:
    """The preview for people."""
    facts = [
        ("rows", f"{found['rows']} {found['format']}"),
        ("role", role),
        ("sources", _words(found["sources"])),
        ("left out", _words(found["left_out"])),
        ("without a reward yet", found["waiting"] or None),
        ("reward", found["reward_function"] or None),
        ("seen up to", _words(found["watermarks"])),
    ]
    print_table(("what", "value"), facts, "")
    if found["refused"]:
        console.print(f"a job would be refused: {found['refused']}", markup=False)


def between(since: datetime | None, until: datetime | None) -> Json | None:
    """A filter's range of dates; naive ones are this machine's time."""
    given = {"start": since, "end": until}
    return {name: at.astimezone().isoformat() for name, at in given.items() if at is not None} or None


def _ref_of_uri(uri: str) -> SnapshotRef:
    named = _NAMED.fullmatch(uri)
    if named is None:
        raise typer.BadParameter(
            f"{uri} is not the uri of a snapshot's manifest, s3://<bucket>/snapshots/<sha256>.json"
        )
    return SnapshotRef(uri=uri, digest=named[1])


def _ref_of_job(endpoints: Endpoints, job_id: str) -> SnapshotRef:
    job = call(endpoints, "coordinator", "GET", f"/v1/jobs/{segment(job_id)}")
    if job.get("snapshot") is None:
        raise Rejected(f"job {job_id} is {job['state']} and has no snapshot")
    return msgspec.convert(job["snapshot"], SnapshotRef)


def _words(counts: Mapping[str, Any]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in counts.items()) or None
