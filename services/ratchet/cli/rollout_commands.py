"""`ratchet rollout`: look at a canary, and steer it. Every act is written down with its actor and reason."""

from __future__ import annotations

import getpass
from typing import Annotated, Any

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, AsJson, Directory

app = typer.Typer(help="Look at rollouts and steer them.", no_args_is_help=True)

Role = Annotated[str, typer.Argument(help="The role whose rollout it is.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; your user name when absent.")]


@app.command()
def status(
    role: Annotated[str | None, typer.Argument(help="One role; all when absent.")] = None,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show where rollouts stand: stage, weight, evidence."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.rollout_view import show, show_one

    answer = call(locate(directory), "deployer", "GET", f"/v1/rollouts/{role}" if role else "/v1/rollouts")
    if as_json:
        print_json(answer)
    elif role is None:
        show(answer["rollouts"])
    else:
        show_one(answer)


@app.command()
def start(
    role: Role,
    version: Annotated[int, typer.Argument(help="The policy version to roll out.")],
    override: Annotated[bool, typer.Option("--override", help="Even though a gate refused it.")] = False,
    reason: Reason = "started by hand",
    actor: Actor = None,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start a rollout of a registered policy."""
    _act(directory, role, "start", {"version": version, "override": override, **_who(actor, reason)})


@app.command()
def pause(
    role: Role, reason: Reason = "paused by hand", actor: Actor = None, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Hold the rollout at its present weight."""
    _act(directory, role, "pause", _who(actor, reason))


@app.command()
def resume(
    role: Role, reason: Reason = "resumed by hand", actor: Actor = None, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Let a paused or held rollout go on."""
    _act(directory, role, "resume", _who(actor, reason))


@app.command()
def promote(
    role: Role, reason: Reason = "promoted by hand", actor: Actor = None, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Make the canary the stable policy now."""
    _act(directory, role, "promote", _who(actor, reason))


@app.command()
def abort(
    role: Role, reason: Reason = "aborted by hand", actor: Actor = None, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Take the canary's traffic back now."""
    _act(directory, role, "abort", _who(actor, reason))


def _who(actor: str | None, reason: str) -> dict[str, str]:
    return {"actor": actor or getpass.getuser(), "reason": reason}


def _act(directory: Any, role: str, act: str, body: dict[str, Any]) -> None:
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.rollout_view import show

    show([call(locate(directory), "deployer", "POST", f"/v1/rollouts/{role}/{act}", body)])
