"""`ratchet optout`: people, sessions and agents of whom nothing is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.api import get, post
from ratchet.cli.endpoints import locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, checked_role, with_options
from ratchet.cli.output import print_answer, print_dry_run, print_table
from ratchet.core.contract.erasure import USER
from ratchet.core.contract.http.gateway import KeptOptOuts, OptOutTaken

app = typer.Typer(no_args_is_help=True)


def who_of(
    user: Annotated[str | None, typer.Option(help="A user's name, as agents send it; it is hashed.")] = None,
    session: Annotated[str | None, typer.Option(help="A session's id.")] = None,
    agent: Annotated[str | None, typer.Option(help="An agent's id.")] = None,
    role: Annotated[
        str | None, typer.Option(help="In this role alone; by default in every one.", callback=checked_role)
    ] = None,
) -> dict[str, str]:
    """The body of a request. Raises `typer.BadParameter` unless it names one user, session or agent."""
    given = {"user": user, "session": session, "agent": agent, "role": role}
    body = {name: value for name, value in given.items() if value is not None}
    if len(body.keys() - {"role"}) != 1:
        raise typer.BadParameter("name exactly one of --user, --session and --agent")
    return body


takes_who = with_options("who", who_of)
Who = dict[str, str]


@app.command()
@takes_who
def add(who: Who, dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Record nothing of someone any more; what is stored of a user or a session is erased."""
    taken = _taken("opt-outs", who, dry_run, as_json, directory)
    if taken is not None:
        ref = f"\nits ref, which `ratchet erase --user` takes: {taken.ref}" if taken.kind == USER else ""
        sentence = f"the {taken.kind} is recorded no more in {taken.role or 'every role'} ({taken.key}){ref}"
        print_answer(taken, as_json, sentence)


@app.command()
@takes_who
def remove(who: Who, dry_run: DryRun = False, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Record someone again, from the next trajectory on. Exit code 3: that changes nothing."""
    taken = _taken("opt-ins", who, dry_run, as_json, directory)
    if taken is None:
        return
    where, is_over = taken.role or "every role", taken.was_opted_out and not taken.opted_out
    sentence = f"the {taken.kind} is recorded again in {where}"
    if taken.opted_out:
        sentence = f"the {taken.kind} has opted out in every role, and so in {where}: leave --role out"
    elif not taken.was_opted_out:
        sentence = f"nothing changes: the gateway does not know that this {taken.kind} had opted out in {where}"
    print_answer(taken, as_json, f"{sentence} ({taken.key})")
    raise typer.Exit(ExitCode.DONE if is_over else ExitCode.PARTLY)


@app.command("list")
def list_kept(as_json: AsJson = False, directory: Directory = HERE) -> None:
    """List the newest entries; they name no one: a key is the digest of a keyed hash or an id."""
    answer = get(locate(directory), "gateway", "/v1/opt-outs", KeptOptOuts)
    rows = [(kept.key, kept.kind, kept.role or "every", kept.at) for kept in answer.opt_outs]
    print_answer(answer, as_json, lambda: print_table(("key", "kind", "role", "since"), rows, "no one has opted out"))


def _taken(route: str, who: Who, dry_run: bool, as_json: bool, directory: Path) -> OptOutTaken | None:
    """The gateway's answer; None where it was not asked."""
    endpoints = locate(directory)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('gateway')}/v1/{route}", who, as_json)
        return None
    return post(endpoints, "gateway", f"/v1/{route}", OptOutTaken, who)
