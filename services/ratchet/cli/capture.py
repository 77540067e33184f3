"""`ratchet capture`: which calls a learner may use."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from ratchet.cli.api import require_role
from ratchet.cli.connections import ask_warehouse
from ratchet.cli.endpoints import locate
from ratchet.cli.options import HERE, AsJson, Directory, OptionalRole, Since, since_of
from ratchet.cli.output import console, print_answer, print_facts, print_section
from ratchet.core.stores.capture import RoleCapture, Share, report as certificates_of

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Which calls a learner may use, and what to change so that it may use more."""


@app.command()
def report(
    role: OptionalRole = None, since: Since = "7d", as_json: AsJson = False, directory: Directory = HERE
) -> None:
    """The share of calls that policy gradients may use, by role: the reasons against the others, and what to change.

    Points are how much the share would gain at most: another reason may bar the same call.
    """
    begin, endpoints = since_of(since), locate(directory)
    certificates = ask_warehouse(endpoints, lambda warehouse: certificates_of(warehouse, role, begin), role)
    if not certificates and role is not None:
        require_role(endpoints, role)
    print_answer({"since": begin, "roles": certificates}, as_json, lambda: show(certificates))


def show(certificates: Sequence[RoleCapture]) -> None:
    """Each role's share, and what to change first."""
    if not certificates:
        console.print("no calls in this time")
    for place, certificate in enumerate(certificates):
        if place > 0:
            console.print()
        show_role(certificate)


def show_role(one: RoleCapture) -> None:
    """The certificate of a role in words."""
    trajectories = one.trajectories
    print_facts(
        {
            "role": one.role,
            "calls": f"{one.learnable} of {one.calls} can be learnt from ({percent(one.learnable, one.calls)})",
            "trajectories": f"{trajectories.all} whole, {trajectories.some} in part, {trajectories.none} not at all",
            "barred mostly by": ", ".join(f"{name} ({count})" for name, count in trajectories.reasons.items()) or None,
            "forks": f"{one.forks} calls ({percent(one.forks, one.calls)}) are another attempt or branch",
            "without a parent": f"{one.unlinked} calls after the first of their trajectory" if one.unlinked else None,
            "evaluation": f"{one.pinned} calls to pinned versions, not counted here" if one.pinned else None,
            "recognised by": named(one.recognised),
            "APIs": named(one.apis),
            "models": named(one.models),
        }
    )
    rows = [
        (barred.reason, barred.calls, f"+{barred.points:.1f}", barred.place, barred.remedy) for barred in one.barred
    ]
    print_section(("reason", "calls", "points", "where", "what to change"), rows)


def percent(part: int, whole: int) -> str:
    """A share for people; that of nothing is 0."""
    return f"{100 * part / max(whole, 1):.1f} %"


def named(shares: Sequence[Share]) -> str:
    """Calls by kind, with the share of those that can be learnt from."""
    return ", ".join(
        f"{share.name or 'unknown'} {share.calls} ({percent(share.learnable, share.calls)})" for share in shares
    )
