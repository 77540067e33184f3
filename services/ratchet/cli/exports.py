"""`ratchet export`: stored data as one file for other programs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratchet.cli.api import read_roles
from ratchet.cli.audited import record_read
from ratchet.cli.connections import objects_of, settings_of, warehouse_of
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole
from ratchet.cli.output import print_answer, progress
from ratchet.core.datasets.archives import Archives
from ratchet.core.errors import NotFound
from ratchet.core.service.files import write_whole
from ratchet.extras.exporters import KINDS
from ratchet.extras.exporters.archived import ArchivedRows
from ratchet.extras.exporters.base import Selection
from ratchet.extras.exporters.clickhouse_stored import Stored
from ratchet.extras.exporters.exporting import ExportReport, export
from ratchet.extras.exporters.tensorzero import tensorzero_toml

app = typer.Typer(no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", "-o", help="The file; an existing one is replaced at the end.")]
Format = Annotated[
    Literal["jsonl", "parquet"] | None, typer.Option("--format", help="By default that of the file's ending.")
]
Since = Annotated[datetime | None, typer.Option(help="Only from this instant on; without a zone it is UTC.")]
Until = Annotated[datetime | None, typer.Option(help="Only before this instant.")]
MinReward = Annotated[float | None, typer.Option(help="Only with at least this newest reward.")]
WithArchive = Annotated[
    bool, typer.Option("--archive/--no-archive", help="Also what left ClickHouse for the archive, in the object store.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="At most so many, the newest.")]


FORMATS = ("jsonl", "parquet")


def _add_command(kind: str) -> None:
    """Add the command for one kind; all of them have the same options."""

    def command(
        output: Output,
        file_format: Format = None,
        role: OptionalRole = None,
        since: Since = None,
        until: Until = None,
        min_reward: MinReward = None,
        limit: Limit = None,
        archive: WithArchive = True,
        as_json: AsJson = False,
        directory: Directory = HERE,
    ) -> None:
        chosen = file_format or output.suffix.removeprefix(".")
        if chosen not in FORMATS:
            raise typer.BadParameter(f"{output.name} must end in .jsonl or .parquet, or --format must say what it is")
        if output.suffix.removeprefix(".") in FORMATS and output.suffix != f".{chosen}":
            raise typer.BadParameter(f"{output.name} would not be {chosen}")
        first, end = _in_utc(since), _in_utc(until)
        if first is not None and end is not None and first >= end:
            raise typer.BadParameter("--since is not before --until")
        selection = Selection(role, first, end, min_reward, limit)

        endpoints = locate(directory)

        async def work() -> ExportReport:
            with progress(f"exporting to {output.name}", quiet=as_json) as bar:
                archived = ArchivedRows(Archives(objects_of(endpoints, role))) if archive else None
                async with warehouse_of(settings_of(endpoints, role)) as warehouse:
                    return await export(Stored(warehouse, archived), kind, selection, output, chosen, bar)

        record_read(endpoints, f"export_{kind}", role)
        report = asyncio.run(work())
        reasons = "".join(f"\nleft out: {count} {reason}" for reason, count in report.left_out.items())
        print_answer(report, as_json, f"{report.records} {kind} written to {output} ({report.bytes} bytes){reasons}")

    app.command(kind, help=KINDS.describe(kind))(command)


def _in_utc(instant: datetime | None) -> datetime | None:
    return instant.replace(tzinfo=UTC) if instant is not None and instant.tzinfo is None else instant


for _kind in KINDS:
    _add_command(_kind)


@app.command()
def tensorzero(
    output: Output,
    role: OptionalRole = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """The serving policies with their weights as a tensorzero.toml: a snapshot that does not follow later changes."""
    endpoints = locate(directory)
    all_routes = [answer.route for answer in read_roles(endpoints, role).roles]
    routes = [route for route in all_routes if route is not None and route.stable is not None]
    if not routes:
        raise NotFound("no policy serves any role" if role is None else f"no policy serves {role}")
    write_whole(output, tensorzero_toml(routes, endpoints.url("engine"), datetime.now(UTC)).encode())
    document = {"file": str(output), "roles": [route.role for route in routes]}
    print_answer(
        document, as_json, f"{len(routes)} {'function' if len(routes) == 1 else 'functions'} written to {output}"
    )
