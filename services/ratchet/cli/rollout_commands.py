"""`ratchet rollout`: look at a canary, and steer it. Every act is written down with its actor and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRoleArgument, RoleArgument
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="Look at rollouts and steer them.", no_args_is_help=True)

Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; your user name when absent.")]
Strategy = Annotated[
    Literal["canary", "blue_green", "immediate", "auto"] | None,
    typer.Option(help="How it takes over; what the deployer is set to when absent."),
]
Version = Annotated[int, typer.Argument(min=1, help="The policy version to roll out.")]


@app.command()
def status(
    role: OptionalRoleArgument = None, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY
) -> None:
    """Show where rollouts stand: stage, weight, evidence."""
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_json
    from ratchet.cli.rollout_view import show, show_one
    from ratchet.cli.rollouts import read

    answer = read(locate(directory), role)
    if as_json:
        print_json(answer)
    elif role is None:
        show(answer["rollouts"])
    else:
        show_one(answer)


@app.command()
def start(
    role: RoleArgument,
    version: Version,
    override: Annotated[
        bool, typer.Option("--override", help="Even though a gate refused it; recorded as an emergency override.")
    ] = False,
    strategy: Strategy = None,
    reason: Reason = "started by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start a rollout of a registered policy; `immediate` moves everything unwatched and takes `--override`."""
    wanted = {"version": version, "override": override, **({"strategy": strategy} if strategy else {})}
    _act(directory, f"{role}/start", _order(actor, reason, **wanted), dry_run, as_json)


@app.command()
def approve(
    role: RoleArgument,
    reason: Reason = "approved by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Start the canary of the candidate that waits for approval."""
    _act(directory, f"{role}/approve", _order(actor, reason), dry_run, as_json)


@app.command()
def pause(
    role: RoleArgument,
    reason: Reason = "paused by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Hold the rollout at its present weight."""
    _act(directory, f"{role}/pause", _order(actor, reason), dry_run, as_json)


@app.command()
def resume(
    role: RoleArgument,
    reason: Reason = "resumed by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Let a paused or held rollout go on, or a queue that a revert has parked."""
    _act(directory, f"{role}/resume", _order(actor, reason), dry_run, as_json)


@app.command()
def promote(
    role: RoleArgument,
    override: Annotated[bool, typer.Option("--override", help="Although the canary is undecided.")] = False,
    reason: Reason = "promoted by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Make the canary the stable policy now."""
    _act(
        directory,
        f"{role}/promote",
        _order(actor, reason, **({"override": True} if override else {})),
        dry_run,
        as_json,
    )


@app.command()
def rollback(
    role: RoleArgument,
    reason: Reason = "rolled back by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """End a canary at once, or withdraw a candidate that waits."""
    _act(directory, f"{role}/rollback", _order(actor, reason), dry_run, as_json)


@app.command()
def revert(
    role: RoleArgument,
    reason: Reason = "reverted by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Undo the last promotion at once, whatever runs; candidates wait until `resume`."""
    _act(directory, f"{role}/revert", _order(actor, reason), dry_run, as_json)


@app.command()
def abort(
    role: RoleArgument,
    reason: Reason = "rolled back by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """The older name of `rollback`."""
    _act(directory, f"{role}/rollback", _order(actor, reason), dry_run, as_json)


@app.command()
def audit(role: RoleArgument, as_json: AsJson = False, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Hold a role's log of decisions against its hash chain; exit 1 when somebody changed it."""
    from ratchet.cli.api import call, segment
    from ratchet.cli.endpoints import locate
    from ratchet.cli.exit_codes import ExitCode
    from ratchet.cli.output import print_json
    from ratchet.cli.rollout_view import show_audit

    found = call(locate(directory), "deployer", "GET", f"/v1/rollouts/{segment(role)}/audit")
    if as_json:
        print_json(found)
    else:
        show_audit(found)
    raise typer.Exit(ExitCode.DONE if found["whole"] else ExitCode.FAILED)


def _order(actor: str | None, reason: str, **wanted: object) -> dict[str, Any]:
    import getpass

    return {**wanted, "actor": actor or getpass.getuser(), "reason": reason}


def _act(directory: Path, order: str, body: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Send the order, or have it checked and show it."""
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import print_dry_run, print_json
    from ratchet.cli.rollout_view import show
    from ratchet.cli.rollouts import act

    endpoints = locate(directory)
    done = act(endpoints, order, {**body, "dry_run": True} if dry_run else body)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('deployer')}/v1/rollouts/{order}", body, as_json)
    elif as_json:
        print_json(done)
    else:
        show([done])
