"""`ratchet export`: what is stored, as one file for other programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli.api import read_roles
from ratchet.cli.connections import settings_of, warehouse_of
from ratchet.cli.endpoints import locate
from ratchet.cli.options import AsJson, Directory, OptionalRole
from ratchet.cli.output import print_answer, progress
from ratchet.errors import NotFound
from ratchet.exporters import KINDS
from ratchet.exporters.base import Selection
from ratchet.exporters.clickhouse_stored import Stored
from ratchet.exporters.exporting import ExportReport, export
from ratchet.exporters.tensorzero import tensorzero_toml
from ratchet.service.discovery import DEFAULT_DIRECTORY
from ratchet.service.files import write_whole

app = typer.Typer(no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", "-o", help="The file; one that is there is replaced at the end.")]
Format = Annotated[
    Literal["jsonl", "parquet"] | None, typer.Option("--format", help="By default the file's ending says it.")
]
Since = Annotated[datetime | None, typer.Option(help="Only from this instant on; without a zone it is UTC.")]
Until = Annotated[datetime | None, typer.Option(help="Only before this instant.")]
MinReward = Annotated[float | None, typer.Option(help="Only what is worth at least this much by now.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the newest.")]


FORMATS = ("jsonl", "parquet")


def _command(kind: str) -> Callable[..., None]:
    """The command for one kind; they have the same options."""

    def export(
        output: Output,
        file_format: Format = None,
        role: OptionalRole = None,
        since: Since = None,
        until: Until = None,
        min_reward: MinReward = None,
        limit: Limit = None,
        as_json: AsJson = False,
        directory: Directory = DEFAULT_DIRECTORY,
    ) -> None:
        _export(kind, output, file_format, _selection(role, since, until, min_reward, limit), as_json, directory)

    return export


for _kind in KINDS:
    app.command(_kind, help=KINDS.describe(_kind))(_command(_kind))


@app.command()
def tensorzero(
    output: Output,
    role: OptionalRole = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """What serves now, and with which weights, as a tensorzero.toml: a snapshot that nothing keeps up to date."""
    endpoints = locate(directory)
    known = [one.route for one in read_roles(endpoints, role).roles]
    routes = [route for route in known if route is not None and route.stable is not None]
    if not routes:
        raise NotFound("no policy serves any role" if role is None else f"no policy serves {role}")
    write_whole(output, tensorzero_toml(routes, endpoints.url("engine"), datetime.now(UTC)).encode())
    document = {"file": str(output), "roles": [route.role for route in routes]}
    print_answer(document, as_json, f"{len(routes)} functions written to {output}")


def _format_of(output: Path, file_format: str | None) -> str:
    """The format that was asked for, else the one that the file's ending names."""
    ending = output.suffix.removeprefix(".")
    if file_format is None and ending not in FORMATS:
        raise typer.BadParameter(f"{output.name} must end in .jsonl or .parquet, or --format must say what it is")
    if ending in FORMATS and file_format not in (None, ending):
        raise typer.BadParameter(f"{output.name} would not be {file_format}")
    return file_format or ending


def _selection(
    role: str | None, since: datetime | None, until: datetime | None, min_reward: float | None, limit: int | None
) -> Selection:

    def zoned(instant: datetime | None) -> datetime | None:
        return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant

    first, end = zoned(since), zoned(until)
    if first is not None and end is not None and first >= end:
        raise typer.BadParameter("--since is not before --until")
    return Selection(role, first, end, min_reward, limit)


def _export(
    kind: str, output: Path, file_format: str | None, selection: Selection, as_json: bool, directory: Path
) -> None:

    chosen = _format_of(output, file_format)

    async def work() -> ExportReport:
        with progress(f"exporting to {output.name}", quiet=as_json) as bar:
            async with warehouse_of(settings_of(locate(directory))) as warehouse:
                return await export(Stored(warehouse), kind, selection, output, chosen, bar)

    report = asyncio.run(work())
    print_answer(report, as_json, f"{report.records} {kind} written to {output} ({report.bytes} bytes)")
