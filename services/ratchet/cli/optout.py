"""`ratchet optout`: people, sessions and agents of whom nothing is recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.api import get, post
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, checked_role
from ratchet.cli.output import print_answer, print_dry_run, print_table
from ratchet.core.contract.http.gateway import KeptOptOuts, OptOutTaken

app = typer.Typer(no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", help="A user's name, as agents send it; it is hashed.")]
Session = Annotated[str | None, typer.Option("--session", help="A session's id.")]
Agent = Annotated[str | None, typer.Option("--agent", help="An agent's id.")]
InRole = Annotated[
    str | None, typer.Option("--role", help="In this role alone; by default in every one.", callback=checked_role)
]


@app.command()
def add(
    user: User = None,
    session: Session = None,
    agent: Agent = None,
    role: InRole = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Record nothing of someone any more; what is stored of a user or a session is erased."""
    _say("opt-outs", {"user": user, "session": session, "agent": agent, "role": role}, dry_run, as_json, directory)


@app.command()
def remove(
    user: User = None,
    session: Session = None,
    agent: Agent = None,
    role: InRole = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Record someone again, from the next trajectory on."""
    _say("opt-ins", {"user": user, "session": session, "agent": agent, "role": role}, dry_run, as_json, directory)


@app.command("list")
def list_kept(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the newest entries; they name no one: a key is the digest of a keyed hash or an id."""
    answer = get(locate(directory), "gateway", "/v1/opt-outs", KeptOptOuts)
    rows = [(kept.key, kept.kind, kept.role or "every", kept.at) for kept in answer.opt_outs]
    print_answer(answer, as_json, lambda: print_table(("key", "kind", "role", "since"), rows, "no one has opted out"))


def _say(route: str, given: dict[str, str | None], dry_run: bool, as_json: bool, directory: Directory) -> None:
    body = {name: value for name, value in given.items() if value is not None}
    if len(body.keys() - {"role"}) != 1:
        raise typer.BadParameter("name exactly one of --user, --session and --agent")
    endpoints = locate(directory)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('gateway')}/v1/{route}", body, as_json)
        return
    taken = post(endpoints, "gateway", f"/v1/{route}", OptOutTaken, body)
    verb = "is recorded no more" if taken.opted_out else "is recorded again"
    print_answer(taken, as_json, f"the {taken.kind} {verb} in {taken.role or 'every role'} ({taken.key})")
