"""`ratchet dataset`: snapshots that jobs learned from, and the rows that a job would learn from now."""

from __future__ import annotations

import importlib.util
import tempfile
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ratchet.bus.message import encode
from ratchet.cli.api import known_roles, post
from ratchet.cli.audited import record_read
from ratchet.cli.connections import objects_of, objects_of_roles
from ratchet.cli.data_options import snapshot_of, takes_data
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.ids import snapshot_named
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, RoleOption, options_beside, require_no_file
from ratchet.cli.output import (
    console,
    follow_up,
    plan_lines,
    print_answer,
    print_dry_run,
    print_facts,
    print_table,
    progress,
)
from ratchet.core.chat_templates.conversations import conversations_of
from ratchet.core.contract.http.jobs import PreviewOut, SnapshotOut
from ratchet.core.contract.snapshot import ROWS, RewardGroups, Row, SnapshotManifest, TrajectoryRow
from ratchet.core.contract.training import SnapshotRef
from ratchet.core.datasets.domain.row_reasons import conditions
from ratchet.core.datasets.domain.sequences import unpacked
from ratchet.core.datasets.domain.trl import TRAIN, Split, trl_records
from ratchet.core.datasets.parquet import read_rows
from ratchet.core.datasets.record_files import RECORD_FILES
from ratchet.core.datasets.redacting import RedactionSummary, redacted_records
from ratchet.core.datasets.s3_snapshots import decode_manifest
from ratchet.core.errors import Conflict, MissingExtra, NotFound, Rejected
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.model_hub import stay_local
from ratchet.core.service.files import staged, write_whole

app = typer.Typer(no_args_is_help=True)

JobOrUri = Annotated[
    str,
    typer.Argument(
        help="A job's id, the s3:// uri of a snapshot's manifest, or its digest; the beginning of an id or digest;"
        " `latest` or `support@latest`: what the newest job learned from."
    ),
]

Algorithm = Annotated[str, typer.Option(help="sft, rloo, ppo, dpo, kto, ...: it decides on the format.")]
BaseModel = Annotated[str, typer.Option(help="What would be trained: staleness counts from it. See `ratchet train`.")]

MANIFEST, PARQUET = "manifest.json", "rows.parquet"
"""A snapshot's files in a directory."""
BUILD_S = 600.0
"""All rows are made, which takes a while for many trajectories."""


@app.command()
def show(job_or_uri: JobOrUri, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Show a snapshot: filters, counts, digests, raters and sources."""
    snapshot = find_snapshot(locate(directory), job_or_uri)
    print_answer(document_of(snapshot), as_json, lambda: show_snapshot(snapshot))


@app.command()
@takes_data
def build(
    role: RoleOption = "default",
    algorithm: Algorithm = "sft",
    base_model: BaseModel = "stable",
    *,
    dataset: dict[str, object],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A directory for manifest.json and rows.parquet; it may hold earlier ones.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Store the rows that a job would take now as a snapshot; `ratchet train --snapshot` trains on exactly them."""
    if output is not None:
        require_no_file(output)
        require_own_snapshot(output)
    endpoints = locate(directory)
    body = {"role": role, "algorithm": algorithm, "base_model": base_model, "dataset": dataset}
    if dry_run:
        preview = previewed(endpoints, body)
        if preview.refused:
            with naming_roles(endpoints, role):
                raise Rejected(preview.refused)
        print_dry_run(f"POST {endpoints.url('coordinator')}/v1/snapshots", body, as_json, preview.planned)
        return
    with progress("choosing rows", quiet=as_json):
        snapshot, planned = built(endpoints, body)
    document = document_of(snapshot) | {"planned": planned}
    if output is not None:
        copy_snapshot(endpoints, snapshot, output)
        document["directory"] = str(output)
    print_answer(document, as_json, lambda: show_built(snapshot, planned, directory))


@app.command()
@takes_data
def explain(
    context: typer.Context,
    job_or_uri: Annotated[
        str | None, typer.Argument(help="As in `dataset show`; without it what a job would take now.")
    ] = None,
    role: RoleOption = "default",
    algorithm: Algorithm = "sft",
    base_model: BaseModel = "stable",
    *,
    dataset: dict[str, object],
    model: Annotated[
        str | None,
        typer.Option(help="A model's directory or name: say what its chat template makes of the rows. Stores them."),
    ] = None,
    row_tokens: Annotated[
        int | None, typer.Option(min=2, help="With --model: tokens of the longest row, max_length of a request.")
    ] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Say which rows a job would learn from and which not, and what a model's chat template would lose of them.

    Without a job or snapshot, and without --model, nothing is stored.
    """
    if row_tokens is not None and model is None:
        raise typer.BadParameter("--row-tokens is for --model: without it nothing is rendered")
    if job_or_uri is not None and (beside := options_beside(context, "job_or_uri", "model", "row_tokens")):
        raise typer.BadParameter(
            f"{', '.join(beside)}: {job_or_uri} has its rows already, and nothing is chosen for it"
        )
    endpoints = locate(directory)
    body = {"role": role, "algorithm": algorithm, "base_model": base_model, "dataset": dataset}
    if model is None and job_or_uri is None:
        with progress("choosing rows", quiet=as_json):
            answer = previewed(endpoints, body)
        print_answer(
            {"role": role, "algorithm": algorithm, "preview": answer}, as_json, lambda: show_preview(role, answer)
        )
        return
    if model is not None and importlib.util.find_spec("transformers") is None:
        raise MissingExtra("trainer", "ratchet dataset explain --model")
    with progress("choosing rows", quiet=as_json):
        snapshot, planned = (
            built(endpoints, body) if job_or_uri is None else (find_snapshot(endpoints, job_or_uri), None)
        )
        with fetched_rows(endpoints, snapshot) as rows:
            explained = explained_rows(rows, snapshot.manifest.algorithm, model, row_tokens)
    explained["every_row"] = conditions(snapshot.manifest)

    def show() -> None:
        show_plan(planned)
        show_snapshot(snapshot)
        console.print()
        show_explained(explained)

    print_answer(document_of(snapshot) | {"planned": planned} | explained, as_json, show)


@app.command()
def export(
    job_or_uri: JobOrUri,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Ends in .parquet or .jsonl, its format; an existing file is replaced.",
        ),
    ],
    trl: Annotated[
        Literal["messages", "prompt_completion", "preference", "unpaired"] | None,
        typer.Option(help="Write records of this format of TRL in place of rows."),
    ] = None,
    eval_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="With --trl: this share goes to NAME.eval.SUFFIX, by prompt.")
    ] = 0.0,
    test_ratio: Annotated[float, typer.Option(min=0, max=1, help="The same for NAME.test.SUFFIX.")] = 0.0,
    split_seed: Annotated[int, typer.Option(help="Decides, with its prompt, where a record goes.")] = 42,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Write a snapshot's rows to a file, verified by digest; or records for TRL, in splits that share no prompt."""
    if output.suffix not in (".parquet", ".jsonl"):
        raise typer.BadParameter(f"{output} must end in .parquet or .jsonl")
    if eval_ratio + test_ratio >= 1:
        raise typer.BadParameter("--eval-ratio and --test-ratio leave nothing to train on")
    if trl is None and eval_ratio + test_ratio:
        raise typer.BadParameter("splits are of records: name a format with --trl")
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


@app.command()
def redact(
    source: Annotated[Path, typer.Argument(help="Records, a JSON document a line.")],
    target: Annotated[Path, typer.Argument(help="Where the copy goes; an existing file is replaced.")],
    as_json: AsJson = False,
) -> None:
    """Copy a data set without secrets and personal data, and count what was taken out."""
    if source.suffix != ".jsonl" or target.suffix != ".jsonl":
        raise typer.BadParameter("both files must end in .jsonl: `ratchet dataset export -o NAME.jsonl` writes one")
    if not source.is_file():
        raise typer.BadParameter(f"there is no file {source}")
    if target.exists() and target.samefile(source):
        raise typer.BadParameter("the copy needs a file of its own")
    summary = RedactionSummary()
    with source.open("rb") as lines, staged(target) as partial, partial.open("wb") as copy:
        copy.writelines(redacted_records(lines, summary))
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(summary.redactions.items())) or "nothing"
    text = f"{summary.records} records written to {target}, {summary.changed} of them changed; taken out: {kinds}"
    if summary.left_out:
        text += f"\n{summary.left_out} records left out: their token ids would decode to what was taken out"
    print_answer(summary, as_json, text)


def previewed(endpoints: Endpoints, body: Mapping[str, object]) -> PreviewOut:
    """What a job would take now."""
    with naming_roles(endpoints, str(body["role"])):
        return post(endpoints, "coordinator", "/v1/jobs/preview", PreviewOut, body, timeout_s=BUILD_S)


def built(endpoints: Endpoints, body: Mapping[str, object]) -> tuple[StoredSnapshot, str | None]:
    """A new snapshot of what a job would take now, and of `auto` the reasons for its algorithm.

    Raises `Rejected` with the counts when that is too little.
    """
    with naming_roles(endpoints, str(body["role"])):
        answer = post(endpoints, "coordinator", "/v1/snapshots", SnapshotOut, body, timeout_s=BUILD_S)
    return find_snapshot(endpoints, answer.uri), answer.planned


@contextmanager
def naming_roles(endpoints: Endpoints, role: str) -> Generator[None]:
    """To a refusal in the block for a role that may be misspelt, add the roles that there are."""
    try:
        yield
    except (Conflict, Rejected) as error:
        known = sorted(known_roles(endpoints))
        if role in known:
            raise
        raise Rejected(f"{error}; roles with rewards, jobs or policies: {', '.join(known) or 'none yet'}") from error


def document_of(snapshot: StoredSnapshot) -> dict[str, object]:
    """A snapshot as `--json` prints it."""
    return {"uri": snapshot.ref.uri, "digest": snapshot.ref.digest, "manifest": snapshot.manifest}


def copy_snapshot(endpoints: Endpoints, snapshot: StoredSnapshot, directory: Path) -> None:
    """The manifest as it is stored, and the rows, both verified."""
    objects, parquet = objects_of(endpoints, snapshot.manifest.role), snapshot.manifest.parquet
    record_rows(endpoints, snapshot)
    directory.mkdir(parents=True, exist_ok=True)
    write_whole(directory / MANIFEST, objects.get(snapshot.ref.uri, snapshot.ref.digest))
    objects.get_file(parquet.uri, directory / PARQUET, parquet.sha256)


def require_own_snapshot(directory: Path) -> None:
    """Raise `Rejected` where files would be replaced that are no snapshot's: its rows never lie without a manifest."""
    manifest = directory / MANIFEST
    with suppress(OSError, Rejected):
        decode_manifest(manifest.read_bytes(), str(manifest))
        return
    if taken := [name for name in (MANIFEST, PARQUET) if (directory / name).exists()]:
        raise Rejected(f"{directory} has {', '.join(taken)} of something else: name another directory")


def explained_rows(rows: Iterable[Row], algorithm: str, model: str | None, row_tokens: int | None) -> dict[str, object]:
    """What a learner would make of rows: of calls which can be trained on, of chats what the template loses.

    An algorithm that learns from recorded token ids asks no template.
    """
    known = ALGORITHMS.get(algorithm)
    if known is not None and known.needs_token_ids:
        spans = (span for row in rows if isinstance(row, TrajectoryRow) for span in row.spans)
        return {"calls": Counter("trainable" if span.trainable else span.reason or "unknown" for span in spans)}
    if model is None:
        return {}
    stay_local()
    from ratchet.core.chat_templates.encoder import MAX_LENGTH, explain  # noqa: PLC0415 - it takes seconds
    from ratchet.core.chat_templates.template import load_tokenizer, positions_of  # noqa: PLC0415 - as above

    longest = min(row_tokens or MAX_LENGTH, positions_of(model) or MAX_LENGTH)
    counts = explain((chat for row in rows for chat in conversations_of(row)), load_tokenizer(model), longest)
    figures = {
        name: getattr(counts, name) for name in ("conversations", "rows", "answers", "trained_tokens", "longest")
    }
    return {"chats": {**figures, "longest_allowed": longest, **counts.metrics()}, "findings": counts.findings()}


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A verified snapshot."""

    ref: SnapshotRef
    manifest: SnapshotManifest


def find_snapshot(endpoints: Endpoints, job_or_uri: str) -> StoredSnapshot:
    """The snapshot of a job, or behind a manifest's uri.

    Raises `typer.BadParameter`, `NotFound`, `Rejected` or `DigestMismatch`.
    """
    ref = snapshot_of(snapshot_named(endpoints, job_or_uri))
    objects, roles = objects_of_roles(endpoints)
    manifest = decode_manifest(objects.get(ref.uri, ref.digest), ref.uri)
    if manifest.role not in roles:
        raise NotFound(f"no such object: {ref.uri}")
    return StoredSnapshot(ref, manifest)


def record_rows(endpoints: Endpoints, snapshot: StoredSnapshot) -> None:
    """Say in the audit log that the rows of a snapshot are read."""
    record_read(endpoints, "read_dataset", snapshot.manifest.role, [f"snapshot {snapshot.ref.digest}"])


def write_rows(endpoints: Endpoints, snapshot: StoredSnapshot, file: Path) -> int:
    """Verify the rows' digest and write them to `file` in the format of its suffix; returns their number.

    Raises `Rejected` for rows that this version cannot write as lines.
    """
    objects, parquet = objects_of(endpoints, snapshot.manifest.role), snapshot.manifest.parquet
    if file.suffix == ".parquet":
        record_rows(endpoints, snapshot)
        objects.get_file(parquet.uri, file, parquet.sha256)
        return snapshot.manifest.rows
    with fetched_rows(endpoints, snapshot) as stored, staged(file) as partial, partial.open("wb") as lines:
        whole = (unpacked(row) if isinstance(row, TrajectoryRow) else row for row in stored)  # with their prompts
        return sum(lines.write(encode(row) + b"\n") > 0 for row in whole)


@contextmanager
def fetched_rows(endpoints: Endpoints, snapshot: StoredSnapshot) -> Generator[Iterator[Row]]:
    """The rows of a snapshot whose digest is verified. Raises `Rejected` for a format that is not known here."""
    kind = ROWS.get(snapshot.manifest.format)
    if kind is None:
        raise Rejected(f"{snapshot.ref.uri} holds {snapshot.manifest.format}, which this version cannot read")
    with tempfile.TemporaryDirectory(prefix="ratchet-dataset-") as directory:
        rows = Path(directory) / PARQUET
        record_rows(endpoints, snapshot)
        parquet = snapshot.manifest.parquet
        objects_of(endpoints, snapshot.manifest.role).get_file(parquet.uri, rows, parquet.sha256)
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
        written = {
            name: stack.enter_context(closing(RECORD_FILES[output.suffix](part, form))) for name, part in parts.items()
        }
        for row in rows:
            for prompt, record in trl_records(row, form):
                name = split.of(prompt)
                written[name].add(record)
                counts[name] += 1
    return {str(files[name]): count for name, count in counts.items()}


def show_snapshot(snapshot: StoredSnapshot) -> None:
    """The manifest for people."""
    manifest = snapshot.manifest
    facts = [
        ("uri", snapshot.ref.uri),
        ("digest", snapshot.ref.digest),
        ("rows", f"{manifest.rows} {manifest.format}"),
        ("role", manifest.role),
        ("job", manifest.training_job_id or None),
        ("algorithm", manifest.algorithm),
        ("created", manifest.created_at),
        ("continues", manifest.parent_policy),
        ("filters", _words(manifest.filters)),
        ("sample size", manifest.sample_size),
        ("reward", f"{manifest.reward_function or '-'} ({manifest.reward_transform})"),
        ("sources", mix(manifest.sources or {})),
        ("groups of tries", groups_in_words(manifest.reward_groups)),
        ("raters", _words(manifest.raters or {})),
        ("left out", _words(manifest.left_out)),
        ("trajectories", len(manifest.trajectories)),
        ("preferences", len(manifest.preferences or ())),
        ("seen up to", _words(manifest.watermarks)),
        ("rows' digest", manifest.parquet.sha256),
        ("bytes", manifest.parquet.size),
    ]
    print_table(("snapshot", ""), facts, "")


def show_plan(planned: str | None) -> None:
    """Of `auto`: the algorithm that was chosen, and why not the others."""
    for sentence in plan_lines(planned or ""):
        console.print(sentence, markup=False)


def show_built(snapshot: StoredSnapshot, planned: str | None, directory: Path) -> None:
    """The snapshot, and the command that trains on it."""
    show_plan(planned)
    show_snapshot(snapshot)
    manifest = snapshot.manifest
    words = ("train", manifest.role, "--algorithm", manifest.algorithm, "--snapshot", snapshot.ref.uri)
    console.print(f"`{follow_up(*words, directory=directory)}` trains on it", markup=False)


def show_explained(explained: Mapping[str, Any]) -> None:
    """What `explained_rows` found, for people (`Any`: counts, or sentences)."""
    for condition in explained["every_row"]:
        console.print(f"every row: {condition}", markup=False)
    print_facts({name.replace("_", " "): count for name, count in explained.get("chats", {}).items() if count})
    if "calls" in explained:
        print_table(("call", "how many"), sorted(explained["calls"].items()), "no model call")
        console.print("the algorithm learns from recorded token ids: no chat template is asked")
    for sentence in explained.get("findings", ()):
        console.print(f"- {sentence}", markup=False)
    if explained.get("findings") == []:
        console.print("the chat template loses nothing, and teaches nothing by mistake")


def show_preview(role: str, preview: PreviewOut) -> None:
    """The preview for people."""
    show_plan(preview.planned)
    facts = [
        ("rows", f"{preview.rows} {preview.format}"),
        ("role", role),
        ("sources", mix(preview.sources)),
        ("groups of tries", groups_in_words(preview.reward_groups)),
        ("left out", _words(preview.left_out)),
        ("without a reward yet", preview.waiting or None),
        ("reward", preview.reward_function or None),
        ("seen up to", _words(preview.watermarks)),
    ]
    print_table(("a job would take", ""), facts, "")
    if preview.refused:
        console.print(f"a job would be refused: {preview.refused}", markup=False)


def mix(sources: Mapping[str, int]) -> str | None:
    """Rows by source, each with its share."""
    total = sum(sources.values())
    return ", ".join(f"{name} {count} ({count / total:.0%})" for name, count in sources.items()) or None


def groups_in_words(groups: RewardGroups | None) -> str | None:
    """How many groups can teach rloo, grpo and the like; None where the rows are no tries."""
    if groups is None:
        return None
    return f"{groups.mixed_groups} of {groups.groups} differ in reward; {groups.singletons} tasks with a single try"


def _words(counts: Mapping[str, object]) -> str | None:
    return ", ".join(f"{name} {value}" for name, value in counts.items()) or None
