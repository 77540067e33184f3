"""`ratchet rollout`: look at a canary, and steer it. Every act is written down with its actor and reason."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ratchet.cli.api import call, require_role, segment
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson, Directory, DryRun, OptionalRoleArgument, RoleArgument
from ratchet.cli.output import console, print_answer, print_dry_run, print_facts, print_table, when
from ratchet.cli.policies import read_role
from ratchet.errors import NotFound
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(no_args_is_help=True)

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
    answer = read(locate(directory), role)
    print_answer(answer, as_json, lambda: show(answer["rollouts"]) if role is None else show_one(answer))


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
    found = call(locate(directory), "deployer", "GET", f"/v1/rollouts/{segment(role)}/audit")
    print_answer(found, as_json, lambda: show_audit(found))
    raise typer.Exit(ExitCode.DONE if found["whole"] else ExitCode.FAILED)


def _order(actor: str | None, reason: str, **wanted: object) -> dict[str, Any]:

    return {**wanted, "actor": actor or getpass.getuser(), "reason": reason}


def _act(directory: Path, order: str, body: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Send the order, or have it checked and show it."""
    endpoints = locate(directory)
    done = act(endpoints, order, {**body, "dry_run": True} if dry_run else body)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('deployer')}/v1/rollouts/{order}", body, as_json)
    else:
        print_answer(done, as_json, lambda: show([done]))


Json = dict[str, Any]
"""A decoded answer, or a body."""


def read(endpoints: Endpoints, role: str | None) -> Json:
    """One role's newest rollout, or `{"rollouts": [...]}` of all. Raises `NotFound`."""
    if role is None:
        return call(endpoints, "deployer", "GET", "/v1/rollouts")
    try:
        return call(endpoints, "deployer", "GET", f"/v1/rollouts/{role}")
    except NotFound as error:
        require_role(endpoints, role)
        raise NotFound(f"there was no rollout of {role} yet") from error


def act(endpoints: Endpoints, order: str, body: Json) -> Json:
    """Send `<role>/<verb>`; the rollout as it is then, with `dry_run` in the body as it would be.

    Raises `NotFound`, or `Rejected` in the wrong state.
    """
    try:
        return call(endpoints, "deployer", "POST", f"/v1/rollouts/{order}", body)
    except NotFound:
        _require_object(endpoints, order, body)
        raise


def _require_object(endpoints: Endpoints, order: str, body: Json) -> None:
    """The deployer knows only roles with a policy: say what an order lacks. Raises `NotFound`."""
    role, _, verb = order.partition("/")
    require_role(endpoints, role)
    if verb not in ("start", "revert"):
        read(endpoints, role)
    elif verb == "start" and body["version"] not in [
        policy["version"] for policy in read_role(endpoints, role)["policies"]
    ]:
        raise NotFound(f"{role} has no policy of version {body['version']}")


Rollout = dict[str, Any]
"""A rollout as the deployer describes it."""


def show(rollouts: list[Rollout]) -> None:
    """One line for each."""
    columns = ("role", "state", "candidate", "compared with", "stage", "weight", "reason")
    print_table(columns, [_row(rollout) for rollout in rollouts], "no rollouts yet")


def show_one(rollout: Rollout) -> None:
    """A rollout with its evidence."""
    show([rollout])
    expected = rollout.get("forecast")
    if expected:
        stages = ", ".join(f"{days:g}" for days in expected["expected_days_by_stage"])
        rate, total = expected["trajectories_per_day"], expected["expected_days"]
        line = (
            f"expected: {total:g} days for a policy equal to stable, at {rate:g} trajectories a day ({stages} by stage)"
        )
        console.print(line, markup=False)
    horizon = rollout.get("horizon")
    if horizon:
        line = f"horizon: an outcome that has not come after {horizon['seconds']:g} s is missing ({horizon['basis']})"
        console.print(line, markup=False)
    if rollout.get("parked"):
        console.print(f"the queue is parked: `ratchet rollout resume {rollout['role']}` lets it go on", markup=False)
    _section(("gate", "outcome", "reason"), [(one["gate"], one["outcome"], one["reason"]) for one in rollout["gates"]])
    arms = {name: arm for name, arm in rollout["arms"].items() if isinstance(arm, dict)}
    measured = list(next(iter(arms.values()), {}))
    _section(("arm", *measured), [(name, *(arm.get(one) for one in measured)) for name, arm in arms.items()])
    found = [(test, name, value) for test, values in rollout["e_values"].items() for name, value in values.items()]
    _section(("test", "metric", "e-value"), found)
    console.print(f"thresholds: {', '.join(f'{name} {value:g}' for name, value in rollout['thresholds'].items())}")
    for reason in rollout["waiting_for"]:
        console.print(f"waiting for {reason}", markup=False)


def show_audit(found: dict[str, Any]) -> None:
    """Whether the log is whole; the first break, when it is not."""
    since = f" since {when(found['since']):%Y-%m-%d %H:%M:%S %Z}" if found["since"] else ""
    older = "" if found["complete"] else "; older ones have left the stream"
    counted = f"{found['decisions']} decisions about {found['role']}{since}{older}"
    if found["whole"]:
        console.print(f"{counted}: the log is whole", markup=False)
        return
    console.print(f"{counted}: {found['problem']}", markup=False)
    broken = found["first_break"]
    if broken is not None:
        print_facts(broken)


def _row(rollout: Rollout) -> tuple[object, ...]:
    names = [(rollout.get(which) or {}).get("name") for which in ("candidate", "stable")]
    has_traffic = rollout["weight"] > 0
    return (
        rollout["role"],
        rollout["state"],
        *names,
        rollout["stage"] if has_traffic else None,
        rollout["weight"] if has_traffic else None,
        rollout.get("fault") or rollout["reason"],
    )


def _section(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    if rows:
        console.print()
        print_table(columns, rows, "")
