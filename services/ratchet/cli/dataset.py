"""`ratchet dataset`: snapshots that jobs learned from, and the rows that a job would learn from now."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from ratchet.bus.message import encode
from ratchet.cli.api import get, post, segment
from ratchet.cli.connections import objects_of, settings_of
from ratchet.cli.data_options import snapshot_named, takes_data
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.options import AsJson, Directory, RoleOption
from ratchet.cli.output import console, print_answer, print_table, progress
from ratchet.contract.http.jobs import JobOut, PreviewOut
from ratchet.contract.snapshot import ROWS, Row, SnapshotManifest, TrajectoryRow
from ratchet.contract.training import SnapshotRef
from ratchet.datasets.domain.sequences import unpacked
from ratchet.datasets.domain.trl import TRAIN, Split, trl_records
from ratchet.datasets.parquet import read_rows
from ratchet.datasets.s3_snapshots import Snapshots
from ratchet.errors import Rejected
from ratchet.service.discovery import DEFAULT_DIRECTORY
from ratchet.service.files import staged

app = typer.Typer(no_args_is_help=True)

JobOrUri = Annotated[str, typer.Argument(help="A job's id, or the s3:// uri of a snapshot's manifest.")]

PREVIEW_S = 600.0
"""A preview makes all rows, which takes a while for many trajectories."""


@app.command()
def show(job_or_uri: JobOrUri, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Show a snapshot: filters, counts, digests, raters and sources."""
    snapshot = find_snapshot(locate(directory), job_or_uri)
    document = {"uri": snapshot.ref.uri, "digest": snapshot.ref.digest, "manifest": snapshot.manifest}
    print_answer(document, as_json, lambda: show_snapshot(snapshot))


@app.command()
@takes_data
def preview(
    role: RoleOption = "default",
    algorithm: Annotated[str, typer.Option(help="sft, rloo, ppo, dpo, kto, ...: it decides on the format.")] = "sft",
    *,
    dataset: dict[str, object],
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show the rows that a job would take if it started now, and those it would leave out; nothing is created."""
    with progress("choosing rows", quiet=as_json):
        body = {"role": role, "algorithm": algorithm, "dataset": dataset}
        answer = post(locate(directory), "coordinator", "/v1/jobs/preview", PreviewOut, body, timeout_s=PREVIEW_S)
    document = {"role": role, "algorithm": algorithm, "preview": answer}
    print_answer(document, as_json, lambda: show_preview(role, answer))


@app.command()
def export(
    job_or_uri: JobOrUri,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Ends in .parquet or .jsonl, which decides on the format.")
    ],
    trl: Annotated[
        Literal["messages", "prompt_completion", "preference", "unpaired"] | None,
        typer.Option(help="Write records of this format of TRL in place of rows; needs .jsonl."),
    ] = None,
    eval_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="With --trl: this share goes to NAME.eval.jsonl, by prompt.")
    ] = 0.0,
    test_ratio: Annotated[float, typer.Option(min=0, max=1, help="The same for NAME.test.jsonl.")] = 0.0,
    split_seed: Annotated[int, typer.Option(help="Decides, with its prompt, where a record goes.")] = 42,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Write a snapshot's rows to a file, verified by digest; or records for TRL, in splits that share no prompt."""
    if output.suffix not in (".parquet", ".jsonl"):
        raise typer.BadParameter(f"{output} must end in .parquet or .jsonl")
    if eval_ratio + test_ratio >= 1:
        raise typer.BadParameter("--eval-ratio and --test-ratio leave nothing to train on")
    if trl is None and eval_ratio + test_ratio:
        raise typer.BadParameter("splits are of records: name a format with --trl")
    if trl is not None and output.suffix != ".jsonl":
        raise typer.BadParameter(f"{output} must end in .jsonl: records for TRL are JSON lines")
    endpoints = locate(directory)
    snapshot = find_snapshot(endpoints, job_or_uri)
    document: dict[str, object] = {"file": str(output), "digest": snapshot.ref.digest}
    if trl is None:
        rows = write_rows(endpoints, snapshot, output)
        text = f"{rows} rows ({snapshot.manifest.format}) written to {output}"
        print_answer({**document, "rows": rows}, as_json, text)
        return
    with fetched_rows(endpoints, snapshot) as stored:
        written = write_records(stored, trl, Split(eval_ratio, test_ratio, split_seed), output)
    text = ", ".join(f"{count} records in {file}" for file, count in written.items())
    print_answer({**document, "records": written}, as_json, text)


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
    else:
        ref = snapshot_named(job_or_uri)
    return StoredSnapshot(ref, Snapshots(objects_of(endpoints), settings_of(endpoints).s3_bucket).manifest(ref))


def write_rows(endpoints: Endpoints, snapshot: StoredSnapshot, file: Path) -> int:
    """Verify the rows' digest and write them to `file` in the format of its suffix; returns their number.

    Raises `Rejected` for rows that this version cannot write as lines.
    """
    objects, parquet = objects_of(endpoints), snapshot.manifest.parquet
    if file.suffix == ".parquet":
        objects.get_file(parquet.uri, file, parquet.sha256)
        return snapshot.manifest.rows
    with fetched_rows(endpoints, snapshot) as stored, staged(file) as partial, partial.open("wb") as lines:
        return sum(lines.write(encode(complete(row)) + b"\n") > 0 for row in stored)


@contextmanager
def fetched_rows(endpoints: Endpoints, snapshot: StoredSnapshot) -> Generator[Iterator[Row]]:
    """The rows of a snapshot whose digest is verified. Raises `Rejected` for a format that is not known here."""
    kind = ROWS.get(snapshot.manifest.format)
    if kind is None:
        raise Rejected(f"{snapshot.ref.uri} holds {snapshot.manifest.format}, which this version cannot read")
    with tempfile.TemporaryDirectory(prefix="ratchet-dataset-") as directory:
        rows = Path(directory) / "rows.parquet"
        objects_of(endpoints).get_file(snapshot.manifest.parquet.uri, rows, snapshot.manifest.parquet.sha256)
        yield read_rows(rows, kind)


def write_records(rows: Iterable[Row], form: str, split: Split, output: Path) -> dict[str, int]:
    """Write records of a format of TRL, each split to a file of its own; returns their numbers by file.

    Raises `Rejected` when the rows do not fit the format.
    """
    only = split.names == [TRAIN]
    files = {name: output if only else output.with_suffix(f".{name}{output.suffix}") for name in split.names}
    counts = dict.fromkeys(files, 0)
    with ExitStack() as stack:
        parts = {name: stack.enter_context(staged(file)) for name, file in files.items()}
        lines = {name: stack.enter_context(part.open("wb")) for name, part in parts.items()}
        for row in rows:
            for prompt, record in trl_records(row, form):
                name = split.of(prompt)
                lines[name].write(msgspec.json.encode(record) + b"\n")
                counts[name] += 1
    return {str(files[name]): count for name, count in counts.items()}


def complete(row: Row) -> Row:
    """The row as JSON has it: calls with their whole prompts. Raises `Rejected` when it contradicts itself."""
    return unpacked(row) if isinstance(row, TrajectoryRow) else row


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
