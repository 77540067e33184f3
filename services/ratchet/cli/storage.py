"""`ratchet storage`: the upkeep of the object store."""

from __future__ import annotations

import typer

from ratchet.cli.api import post
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, DryRun
from ratchet.cli.output import console, print_answer, print_table
from ratchet.core.contract.http.status import StorageOut

app = typer.Typer(no_args_is_help=True)

TIMEOUT_S = 3600.0
"""A sweep reads every manifest, and moves what is old."""


@app.callback()
def storage() -> None:
    """The object store: remove what nothing needs any more."""


@app.command()
def sweep(dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Set aside the objects that no job, policy or route refers to, and remove what was set aside long enough.

    The coordinator does this every day (RATCHET_COORDINATOR_SWEEP). What is set aside comes back when it is read.
    """
    path = f"/v1/storage/sweep?dry_run={str(dry_run).lower()}"
    report = post(locate(directory), "coordinator", path, StorageOut, timeout_s=TIMEOUT_S)
    print_answer(report, as_json, lambda: _print(report))


def _print(report: StorageOut) -> None:
    rows = [(reason, swept.objects, swept.bytes) for reason, swept in sorted(report.set_aside.items())]
    rows.append(("removed for good", report.removed.objects, report.removed.bytes))
    would = "would be " if report.dry_run else ""
    console.print(f"{report.objects} objects, {report.bytes} bytes; {would}set aside or removed:")
    print_table(("reason", "objects", "bytes"), rows, "nothing")
    if report.taken_back:
        console.print(f"{report.taken_back} {would}taken back: something refers to them again")
