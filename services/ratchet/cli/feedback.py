"""`ratchet feedback`: what a person thinks of a trajectory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import typer

from ratchet.cli.api import post
from ratchet.cli.completion import complete_role
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson, Directory, DryRun, TrajectoryArgument, checked_role
from ratchet.cli.output import errors, print_answer, print_dry_run
from ratchet.cli.trajectories import roles_of
from ratchet.contract.http.gateway import FeedbackTaken
from ratchet.errors import Rejected, Unavailable
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer()

RoleOfTrajectory = Annotated[
    str | None,
    typer.Option(
        "--role",
        help="The trajectory's role, where it is not stored yet.",
        callback=checked_role,
        autocompletion=complete_role,
    ),
]


@app.command()
def feedback(
    trajectory_id: TrajectoryArgument,
    thumbs: Annotated[Literal["up", "down"] | None, typer.Option(help="Thumbs up or down.")] = None,
    stars: Annotated[float | None, typer.Option(min=0, max=5, help="0 to 5 stars.")] = None,
    comment: Annotated[str | None, typer.Option(help="Words.")] = None,
    rater: Annotated[str | None, typer.Option(help="Who says so; one person's newer word replaces the older.")] = None,
    role: RoleOfTrajectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Give feedback on a trajectory; its reward is computed anew. Exit code 3: nothing is stored under the id yet.

    It is given all the same, and counts once its trajectory is stored. Only where nothing knows the trajectory's role,
    neither --role nor the gateway, is nothing given: exit code 1.
    """
    opinions = {"thumbs": None if thumbs is None else thumbs == "up", "rating": stars, "comment": comment}
    given = {kind: value for kind, value in opinions.items() if value is not None}
    if not given:
        raise typer.BadParameter("say something: --thumbs up|down, --stars 0..5 or --comment TEXT")
    endpoints = locate(directory)
    known, doubt = _known_role(endpoints, trajectory_id, role)
    named = {"role": known, "rater": rater}
    about = {"trajectory_id": trajectory_id, **{name: value for name, value in named.items() if value}}
    bodies = [{**about, "kind": kind, "value": value} for kind, value in given.items()]
    warning = f"{doubt}: the feedback counts once its trajectory is" if doubt else None
    if dry_run:
        print_dry_run(f"POST {endpoints.url('gateway')}/v1/feedback", bodies, as_json)
        if warning and known is None:
            warning += "; without --role it is given only if the gateway has seen a call of it"
    else:
        answers = _give(endpoints, bodies, doubt)
        sentence = f"noted {', '.join(given)} for trajectory {trajectory_id}"
        print_answer({"feedback": answers, "warning": warning}, as_json, sentence)
    if warning is not None:
        errors.print(f"ratchet: {warning}", markup=False)
    raise typer.Exit(ExitCode.PARTLY if warning else ExitCode.DONE)


def _known_role(endpoints: Endpoints, trajectory_id: str, role: str | None) -> tuple[str | None, str | None]:
    """The role to publish under, and what is doubtful. Raises `Rejected` for a role that is not the trajectory's.

    Feedback that comes before its trajectory is legal, and a warehouse that is away must not keep it from being given.
    """
    try:
        stored = asyncio.run(roles_of(endpoints, trajectory_id))
    except Unavailable as error:
        return role, f"whether the trajectory is stored could not be looked up ({error})"
    if not stored:
        return role, f"nothing is stored under {trajectory_id} yet"
    if role is not None and role not in stored:
        raise Rejected(f"trajectory {trajectory_id} has the role {' and '.join(stored)}, not {role}")
    return role or (stored[0] if len(stored) == 1 else None), None


def _give(endpoints: Endpoints, bodies: Sequence[Mapping[str, object]], doubt: str | None) -> list[FeedbackTaken]:
    """The gateway's answers. Raises `Rejected`, before anything is given, when it cannot tell the role either."""
    try:
        return [post(endpoints, "gateway", "/v1/feedback", FeedbackTaken, body) for body in bodies]
    except Rejected as error:
        if error.param != "role" or "role" in bodies[0]:
            raise
        known = f"{doubt}, and " if doubt else ""
        raise Rejected(f"{known}the gateway cannot tell its role ({error}): add --role ROLE") from error
