"""`ratchet policies`: every registered policy, where it comes from, and its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.completion import complete_policy
from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRoleArgument
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Registered policies.", no_args_is_help=True)

Policy = Annotated[
    str,
    typer.Argument(help="`support@3`, its full name, or a role: what serves it now.", autocompletion=complete_policy),
]


@app.command("list")
def list_policies(
    role: OptionalRoleArgument = None, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """List policies, newest last."""
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.policies import read_roles
    from ratchet.cli.policy_view import show_list

    answer = read_roles(locate(directory), role)
    if as_json:
        print_json(answer)
    else:
        show_list(answer["roles"])


@app.command()
def show(
    policy: Policy,
    trajectories: Annotated[
        int, typer.Option(min=0, max=500, help="List at most so many trajectories and preferences.")
    ] = 5,
    parents: Annotated[int, typer.Option(min=0, max=20, help="Also walk to so many of its ancestors.")] = 0,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show a policy and what it was made of: job, snapshot, trajectories, rewards, raters. --json has the event ids."""
    from ratchet.cli.endpoints import locate
    from ratchet.cli.lineage import lineage_tree, read_lineage
    from ratchet.cli.output import console, print_json
    from ratchet.cli.policies import find_policy

    endpoints = locate(directory)
    lineage = read_lineage(endpoints, find_policy(endpoints, policy), trajectories, parents)
    if as_json:
        print_json(lineage)
    else:
        console.print(lineage_tree(lineage))


@app.command()
def export(
    policy: Policy,
    target: Annotated[
        Path | None,
        typer.Argument(help="A directory that is new or empty; by default artifacts/<algorithm>/<policy>."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Copy a policy's files and manifest out of the object store, each verified by its digest."""
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_dry_run, print_json, progress
    from ratchet.cli.policies import export as export_files
    from ratchet.cli.policies import export_target, find_policy, require_exportable

    endpoints = locate(directory)
    found = find_policy(endpoints, policy)
    target = target or export_target(endpoints, found)
    if dry_run:
        require_exportable(endpoints, found, target)
        print_dry_run(f"write {found['name']} to {target}", {"uri": found["uri"], "digest": found["digest"]}, as_json)
        return
    with progress(f"exporting {found['name']}", quiet=as_json) as bar:
        files = export_files(endpoints, found, target, bar)
    if as_json:
        print_json({"policy": found["name"], "directory": str(target), "files": files})
    else:
        console.print(f"{found['name']}: {len(files)} files in {target}", markup=False)
