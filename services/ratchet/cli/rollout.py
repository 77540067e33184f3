"""`ratchet rollout`: look at a canary, and steer it. The audit log keeps every act with its actor and reason."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from ratchet.cli.api import get, post, read_role, require_role, segment
from ratchet.cli.audited import user_name
from ratchet.cli.completion import complete_role
from ratchet.cli.connections import ask_warehouse
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.ids import LATEST
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, OptionalRoleArgument, RoleArgument, checked_role
from ratchet.cli.output import console, print_answer, print_dry_run, print_facts, print_section, print_table
from ratchet.core.contract.http.rollouts import (
    ArmOut,
    AuditOut,
    ComplaintsOut,
    CostCap,
    DifferenceOut,
    RolloutOut,
    RolloutsOut,
    SubjectsOut,
)
from ratchet.core.errors import Conflict, NotFound
from ratchet.core.stores.history import Decision, History

app = typer.Typer(no_args_is_help=True)

VERSION = re.compile(r"[1-9]\d{0,8}")


def checked_version(context: typer.Context, version: str) -> str:
    """The version as it is. Raises `typer.BadParameter` for a text that is neither a version nor `latest`."""
    if not context.resilient_parsing and version != LATEST and not VERSION.fullmatch(version):
        raise typer.BadParameter(f"{version!r} is no policy version: a number from 1 on, or `latest`")
    return version


def checked_target(context: typer.Context, target: str) -> str:
    """The role, or a candidate such as `support@3`, as it is. Raises `typer.BadParameter`."""
    role, at, version = target.partition("@")
    checked_role(context, role)
    if at and not context.resilient_parsing and not VERSION.fullmatch(version.partition("-")[0]):
        raise typer.BadParameter(f"{target!r} names no candidate: a role, or a role and a version such as support@3")
    return target


Target = Annotated[
    str,
    typer.Argument(
        metavar="ROLE",
        help="The agent role; `support@3` acts only while the newest rollout is that of version 3.",
        callback=checked_target,
        autocompletion=complete_role,
    ),
]
Reason = Annotated[str, typer.Option("--reason", help="Why; the audit log keeps it.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Who; your user name when absent.")]
Strategy = Annotated[
    Literal["canary", "blue_green", "immediate", "auto"] | None,
    typer.Option(help="How it takes over; by default the deployer's setting."),
]
Version = Annotated[str, typer.Argument(help="The policy version to roll out, or `latest`.", callback=checked_version)]


@app.command()
def status(
    role: OptionalRoleArgument = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show the state of rollouts: stage, weight, evidence."""
    endpoints = locate(directory)
    if role is not None:
        rollout = read(endpoints, role)
        print_answer(rollout, as_json, lambda: show_one(rollout))
    else:
        answer = get(endpoints, "deployer", "/v1/rollouts", RolloutsOut)
        print_answer(answer, as_json, lambda: show(answer.rollouts))


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
    directory: Directory = HERE,
) -> None:
    """Start a rollout of a registered policy; `immediate` moves everything unwatched and takes `--override`."""
    number = int(version) if version != LATEST else newest_version(locate(directory), role)
    chosen = {"version": number, "override": override, **({"strategy": strategy} if strategy else {})}
    _act(directory, f"{segment(role)}/start", order_of(actor, reason, **chosen), dry_run, as_json)


def _steered_by(name: str, reason_by_default: str, about: str) -> None:
    """Add a command that gives an order about a role's rollout; all of them have the same options."""

    def steer(
        role: Target,
        reason: Reason = reason_by_default,
        actor: Actor = None,
        dry_run: DryRun = False,
        as_json: AsJson = False,
        directory: Directory = HERE,
    ) -> None:
        _act_on_seen(directory, role, name, order_of(actor, reason), dry_run, as_json)

    app.command(name, help=about)(steer)


_steered_by("approve", "approved by hand", "Start the canary of the candidate that waits for approval.")
_steered_by("pause", "paused by hand", "Hold the rollout at its present weight.")
_steered_by(
    "resume",
    "resumed by hand",
    "Let a paused, held or suspended rollout go on, or a queue that a revert has parked.",
)


@app.command()
def promote(
    role: Target,
    override: Annotated[bool, typer.Option("--override", help="Although the canary is undecided.")] = False,
    reason: Reason = "promoted by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Make the canary the stable policy now."""
    order = order_of(actor, reason, **({"override": True} if override else {}))
    _act_on_seen(directory, role, "promote", order, dry_run, as_json)


_steered_by("rollback", "rolled back by hand", "End a canary at once, or withdraw a candidate that waits.")


@app.command()
def revert(
    role: RoleArgument,
    reason: Reason = "reverted by hand",
    actor: Actor = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Undo the last promotion at once, whatever runs; candidates wait until `resume`."""
    _act(directory, f"{segment(role)}/revert", order_of(actor, reason), dry_run, as_json)


@app.command()
def audit(role: RoleArgument, as_json: AsJson = False, directory: Directory = HERE) -> None:
    """Check a role's log of decisions by its hash chain; exit code 1: it was changed."""
    log = get(locate(directory), "deployer", f"/v1/rollouts/{segment(role)}/audit", AuditOut)
    print_answer(log, as_json, lambda: show_audit(log))
    raise typer.Exit(ExitCode.DONE if log.whole else ExitCode.FAILED)


@app.command()
def history(
    role: RoleArgument,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the newest to show.")] = 20,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show the decisions about a role's rollouts, newest first: when, who, what and why; `audit` proves them."""
    endpoints = locate(directory)
    decisions = ask_warehouse(endpoints, lambda warehouse: History(warehouse).decisions(role, limit), role)
    if not decisions:
        require_role(endpoints, role)
    print_answer({"decisions": decisions}, as_json, lambda: show_history(decisions))


def order_of(actor: str | None, reason: str, **chosen: object) -> dict[str, object]:
    """The body of an order to the deployer: who gives it, by default this user, and why."""
    return {**chosen, "actor": actor or user_name(), "reason": reason}


def _act(directory: Path, order: str, body: dict[str, object], dry_run: bool, as_json: bool) -> None:
    """Send the order; in a dry run only have it checked, and show it."""
    endpoints = locate(directory)
    done = act(endpoints, order, {**body, "dry_run": True} if dry_run else body)
    if dry_run:
        print_dry_run(f"POST {endpoints.url('deployer')}/v1/rollouts/{order}", body, as_json)
    else:
        print_answer(done, as_json, lambda: show([done]))


def _act_on_seen(
    directory: Path, target: str, verb: str, body: dict[str, object], dry_run: bool, as_json: bool
) -> None:
    """Give an order about the rollout that is the newest one now, or only about that of the version in `target`.

    The order names its id: the deployer refuses it where a newer rollout has taken its place meanwhile.
    """
    role, _, version = target.partition("@")
    newest = read(locate(directory), role)
    if version and not is_candidate(newest, target):
        now = f"the newest rollout of {role} is of {newest.candidate.name} and {newest.state}"
        raise Conflict(f"{now}, not of {target}: look at it, then decide")
    _act(directory, f"{segment(role)}/{verb}", {**body, "rollout_id": newest.rollout_id}, dry_run, as_json)


def is_candidate(rollout: RolloutOut, target: str) -> bool:
    """Whether a role and a version, with a part of the digest or without, name the candidate."""
    name = rollout.candidate.name
    return name == target or name.startswith(target if "-" in target else f"{target}-")


def newest_version(endpoints: Endpoints, role: str) -> int:
    """The version of the role's newest policy. Raises `NotFound`."""
    versions = [policy.version for policy in read_role(endpoints, role).policies]
    if not versions:
        raise NotFound(f"{role} has no policy yet")
    return max(versions)


def read(endpoints: Endpoints, role: str) -> RolloutOut:
    """The role's newest rollout. Raises `NotFound`."""
    try:
        return get(endpoints, "deployer", f"/v1/rollouts/{segment(role)}", RolloutOut)
    except NotFound as error:
        require_role(endpoints, role)
        raise NotFound(f"there was no rollout of {role} yet") from error


def act(endpoints: Endpoints, order: str, body: Mapping[str, object]) -> RolloutOut:
    """Send `<role>/<verb>`; returns the rollout after it, with `dry_run` in the body as it would be then.

    Raises `NotFound`, or `Rejected` in the wrong state.
    """
    try:
        return post(endpoints, "deployer", f"/v1/rollouts/{order}", RolloutOut, body)
    except NotFound:  # the deployer knows only roles with a policy: say what the order lacks
        role, _, verb = order.partition("/")
        require_role(endpoints, role)
        if verb not in ("start", "revert"):
            read(endpoints, role)
        elif verb == "start":
            versions = [policy.version for policy in read_role(endpoints, role).policies]
            if body["version"] not in versions:
                raise NotFound(f"{role} has no policy of version {body['version']}") from None
        raise


def show_history(decisions: Sequence[Decision]) -> None:
    """One line for each."""
    columns = ("at", "policy", "instead of", "stage", "weight", "verdict", "by", "reason")
    rows = [
        (
            decision.at,
            f"v{decision.to_version}",
            None if decision.from_version is None else f"v{decision.from_version}",
            decision.stage,
            decision.weight,
            decision.verdict,
            decision.actor,
            decision.reason,
        )
        for decision in decisions
    ]
    print_table(columns, rows, "no decisions are stored yet")


def show(rollouts: Sequence[RolloutOut]) -> None:
    """One line for each."""
    columns = ("role", "state", "candidate", "compared with", "stage", "weight", "queue", "reason")
    rows = [
        (
            rollout.role,
            rollout.state,
            rollout.candidate.name,
            rollout.stable.name if rollout.stable else None,
            rollout.stage if rollout.weight > 0 else None,
            rollout.weight if rollout.weight > 0 else None,
            len(rollout.queue) or None,
            rollout.fault or rollout.late or rollout.progress or rollout.reason,
        )
        for rollout in rollouts
    ]
    print_table(columns, rows, "no rollouts yet")


def show_one(rollout: RolloutOut) -> None:
    """A rollout with its evidence."""
    show([rollout])
    if (expected := rollout.forecast) is not None:
        stages = ", ".join(f"{days:g}" for days in expected.expected_days_by_stage)
        days, rate = f"{expected.expected_days:g} days", f"{expected.trajectories_per_day:g} trajectories a day"
        rate = f"{rate} of {expected.subjects_per_day:g} subjects"
        console.print(f"expected: {days} for a policy equal to stable, at {rate} ({stages} by stage)", markup=False)
    if (horizon := rollout.horizon) is not None:
        basis = f"an outcome that has not come after {horizon.seconds:g} s is missing ({horizon.basis})"
        console.print(f"horizon: {basis}", markup=False)
    if rollout.cost is not None:
        show_cost(rollout.cost, rollout.differences.get("cost"))
    if rollout.complaints is not None:
        show_complaints(rollout.complaints)
    show_subjects(rollout.subjects)
    if rollout.queue:
        candidate, *older = rollout.queue
        ends = "the queue goes on" if rollout.parked else "this rollout ends"
        superseded = f", and then supersedes {', '.join(older)}" if older else ""
        console.print(f"next: {candidate} waits until {ends}{superseded}", markup=False)
    if rollout.parked:
        console.print(f"the queue is parked: `ratchet rollout resume {rollout.role}` lets it go on", markup=False)
    print_section(("gate", "outcome", "reason"), [(gate.gate, gate.outcome, gate.reason) for gate in rollout.gates])
    arms = (("stable", rollout.arms.stable), ("canary", rollout.arms.canary))
    print_section(("arm", *ArmOut.__struct_fields__), [(name, *msgspec.structs.astuple(arm)) for name, arm in arms])
    evidence = [(test, name, value) for test, values in rollout.e_values.items() for name, value in values.items()]
    print_section(("test", "metric", "e-value"), evidence)
    console.print(f"thresholds: {', '.join(f'{name} {value:g}' for name, value in rollout.thresholds.items())}")
    if rollout.late is not None:
        console.print(rollout.late, markup=False)
    for reason in rollout.waiting_for:
        console.print(f"waiting for {reason}", markup=False)


def show_cost(cost: CostCap, difference: DifferenceOut | None) -> None:
    """Whether cost is compared, what that costs the other metrics, and how much dearer the canary is."""
    if cost.cap_usd is None:
        console.print(f"cost: not compared ({cost.basis})", markup=False)
        return
    console.print(f"cost: compared up to {cost.cap_usd:.3g} USD a trajectory ({cost.basis})", markup=False)
    if cost.more_evidence is not None:
        console.print(f"a rollback by another metric needs {cost.more_evidence:.0%} more evidence than without cost")
    if difference is not None and difference.low is not None and difference.high is not None:
        seen, low, high = (
            f"{abs(value):.0%} {'dearer' if value > 0 else 'cheaper'}"
            for value in (difference.difference, difference.low, difference.high)
        )
        console.print(f"the canary is {seen}: between {low} and {high} with 95 %, at every look; this decides nothing")


def show_complaints(compared: ComplaintsOut) -> None:
    """How many more complaints are a difference, and what comparing them costs the metrics."""
    bound = f"more than {1 + compared.margin:g} times as many as stable's, within the horizon, roll the canary back"
    console.print(f"complaints of users: compared; {bound}", markup=False)
    console.print(f"a rollback by a metric needs {compared.more_evidence:.0%} more evidence than without complaints")


def show_subjects(subjects: SubjectsOut) -> None:
    """Whose trajectories the evidence is about."""
    split = f"; {subjects.split} with more than half of them counts by trajectory" if subjects.split else ""
    before = f"before it {subjects.before} in {subjects.starts_before} starts{split}"
    console.print(f"subjects: {subjects.seen} seen in this rollout, {before}", markup=False)
    if subjects.note is not None:
        console.print(subjects.note, markup=False)


def show_audit(log: AuditOut) -> None:
    """Whether the log is whole, else its first break."""
    since = f" since {log.since:%Y-%m-%d %H:%M:%S %Z}" if log.since else ""
    older = "" if log.complete else "; older ones have left the stream"
    counted = f"{log.decisions} decisions about {log.role}{since}{older}"
    console.print(f"{counted}: {'the log is whole' if log.whole else log.problem}", markup=False)
    if not log.whole and log.first_break is not None:
        print_facts(msgspec.to_builtins(log.first_break))
