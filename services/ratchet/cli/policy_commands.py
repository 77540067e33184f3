"""`ratchet policies`: every registered policy and what became of it."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, AsJson, Directory


def policies(
    role: Annotated[str | None, typer.Argument(help="Only this role.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """List policies, newest last."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json, print_table, when

    answer = call(locate(directory), "deployer", "GET", f"/v1/policies/{role}" if role else "/v1/policies")
    if as_json:
        print_json(answer)
        return
    columns = ("role", "policy", "stage", "kind", "samples", "created", "reason")
    found = [policy for one in (answer["roles"] if role is None else [answer]) for policy in one["policies"]]
    rows = [
        (p["role"], p["name"], p["stage"], p["kind"], p.get("training_samples"), when(p["created_at"]), p.get("reason"))
        for p in found
    ]
    print_table(columns, rows, "no policies yet")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(policies)
