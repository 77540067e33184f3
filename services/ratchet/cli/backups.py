"""`ratchet backup` and `ratchet restore`: whole copies of a local stack's state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.audited import record_change
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, print_answer, print_dry_run, progress
from ratchet.core.errors import ConfigError
from ratchet.local.local_stack.backup import Manifest, back_up, planned_backup, restore as put_back

app = typer.Typer()


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="A new folder, on another disk if possible.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all, say what would be copied, copy nothing.")
    ] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Copy the state of a stack, running or not, into a new folder, secrets included.

    Keep it as private as the state itself. A stack that runs stands still for the end of the copy, as a rule for less
    than a second and never for more than a few: so all that is copied is of one moment.
    """
    try:
        files, size = planned_backup(directory, target)
        if dry_run:
            print_dry_run(f"copy {directory} to {target}", {"files": files, "bytes": size}, as_json)
            return
        record_change(directory, "backup")  # it writes below `data`: only where there is a state
        with progress("copying", quiet=as_json) as bar:
            manifest = back_up(directory, target, bar)
    except OSError as error:
        raise ConfigError(f"the backup was not made: {error}") from error
    document = {"backup": str(target), **_facts(manifest)}
    print_answer(document, as_json, lambda: _print(f"{target} holds", manifest))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="A folder that `ratchet backup` has made.")],
    replace: Annotated[bool, typer.Option("--replace", help="Set aside the state that is there; keep it.")] = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Put a backup back as the state of a stopped stack, once every file of it is checked."""
    try:
        with progress("checking and copying", quiet=as_json) as bar:
            manifest, aside = put_back(source, directory, replace=replace, on_progress=bar)
            record_change(directory, "restore", [f"state of {manifest.made_at.isoformat()}"])
    except OSError as error:
        raise ConfigError(f"the backup was not restored: {error}") from error
    document = {"directory": str(directory), "set_aside": aside and str(aside), **_facts(manifest)}
    print_answer(document, as_json, lambda: _show_restored(directory, manifest, aside))


def _show_restored(directory: Path, manifest: Manifest, aside: Path | None) -> None:
    _print(f"{directory} is again", manifest)
    console.print("keys that were revoked since then count again: see `ratchet keys list`, and revoke them once more")
    console.print("erasures that were asked for since then are carried out again, where their receipts were here: else")
    console.print("by `ratchet erase --receipt FILE`, before anything reads the state")
    if aside is not None:
        console.print(f"what was there is in {aside}", markup=False)


def _print(beginning: str, manifest: Manifest) -> None:
    program = f", written by Ratchet {manifest.version.program}" if manifest.version else ""
    console.print(
        f"{beginning} the state of {manifest.made_at:%Y-%m-%d %H:%M} UTC: {len(manifest.files)} files,"
        f" {manifest.size / 1e6:.1f} MB{program}",
        markup=False,
    )


def _facts(manifest: Manifest) -> dict[str, object]:
    version = manifest.version.program if manifest.version else None
    return {"made_at": manifest.made_at, "files": len(manifest.files), "bytes": manifest.size, "version": version}
