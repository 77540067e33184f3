"""`ratchet feedback`: a person's opinion of a trajectory."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import typer

from ratchet.cli.api import post
from ratchet.cli.completion import complete_role
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.ids import stored_trajectory
from ratchet.cli.options import HERE, AsJson, Directory, DryRun, TrajectoryArgument, checked_role
from ratchet.cli.output import errors, print_answer, print_dry_run
from ratchet.cli.trajectories import roles_of
from ratchet.core.contract.http.gateway import FeedbackTaken
from ratchet.core.errors import Forbidden, NotFound, Rejected, Unavailable
from ratchet.core.rules.texts import id_of_name

app = typer.Typer()

RoleOfTrajectory = Annotated[
    str | None,
    typer.Option(
        "--role",
        help="The trajectory's role, if it is not stored yet.",
        callback=checked_role,
        autocompletion=complete_role,
    ),
]


@app.command()
def feedback(
    trajectory: TrajectoryArgument,
    thumbs: Annotated[Literal["up", "down"] | None, typer.Option(help="Thumbs up or down.")] = None,
    stars: Annotated[float | None, typer.Option(min=0, max=5, help="0 to 5 stars.")] = None,
    comment: Annotated[str | None, typer.Option(help="Words.")] = None,
    observation: Annotated[str | None, typer.Option(help="What you saw it do.")] = None,
    error_analysis: Annotated[str | None, typer.Option(help="What went wrong, and why.")] = None,
    efficiency: Annotated[
        float | None, typer.Option(min=0, max=1, help="How little it took for what it did, 0 to 1.")
    ] = None,
    outcome: Annotated[
        float | None, typer.Option(min=0, max=1, help="How much of its goal it reached, 0 to 1.")
    ] = None,
    rater: Annotated[
        str | None, typer.Option(help="Who gives it; a newer opinion of the same rater replaces the older one.")
    ] = None,
    role: RoleOfTrajectory = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Give feedback on a trajectory; its reward is computed anew. Exit code 3: nothing is stored under the id yet.

    `latest` is the newest run that has an answer and is no evaluation.

    The gateway takes it all the same, and it counts once its trajectory is stored. If neither --role nor the gateway
    gives the trajectory's role, the command fails with exit code 1.
    """
    opinions = {
        "thumbs": None if thumbs is None else thumbs == "up",
        "rating": stars,
        "comment": comment,
        "observation": observation,
        "error_analysis": error_analysis,
        "efficiency": efficiency,
        "outcome_evaluation": outcome,
    }
    given = {kind: value for kind, value in opinions.items() if value is not None}
    if not given:
        raise typer.BadParameter("give at least one opinion, such as --thumbs up|down, --stars 0..5 or --comment TEXT")
    endpoints = locate(directory)
    trajectory_id = identified(endpoints, trajectory, role)
    known, doubt = _known_role(endpoints, trajectory_id, role)
    named = {"role": known, "rater": rater}
    about = {"trajectory_id": trajectory_id, **{name: value for name, value in named.items() if value}}
    bodies = [{**about, "kind": kind, "value": value} for kind, value in given.items()]
    warning = f"{doubt}: the feedback counts once its trajectory is" if doubt else None
    if dry_run:
        print_dry_run(f"POST {endpoints.url('gateway')}/v1/feedback", bodies, as_json)
        if warning and known is None:
            warning += "; without --role the gateway takes it only if it has seen a call of it"
    else:
        try:
            answers = [post(endpoints, "gateway", "/v1/feedback", FeedbackTaken, body) for body in bodies]
        except Rejected as error:  # for its role: then the first body was refused, and none was taken
            if error.param != "role" or known is not None:
                raise
            reason = f"{doubt}, and " if doubt else ""
            raise Rejected(f"{reason}the gateway cannot tell its role ({error}): add --role ROLE") from error
        which = f" of {known}" if known else ""
        sentence = f"noted {', '.join(given)} for trajectory {trajectory_id}{which}"
        print_answer({"feedback": answers, "warning": warning}, as_json, sentence)
    if warning is not None:
        errors.print(f"ratchet: {warning}", markup=False)
    raise typer.Exit(ExitCode.PARTLY if warning else ExitCode.DONE)


def identified(endpoints: Endpoints, trajectory: str, role: str | None) -> str:
    """The trajectory's id. A whole one needs no store; raises `NotFound` for any other text that names nothing stored.

    Raises `Rejected` and `Unavailable` too.
    """
    trajectory_id = asyncio.run(stored_trajectory(endpoints, trajectory, role, answered=True))
    if trajectory_id is not None:
        return trajectory_id
    trajectory_id = id_of_name(trajectory)
    if not roles_of(endpoints, trajectory_id):
        raise NotFound(f"no trajectory {trajectory} is stored; before it is, feedback needs its whole id")
    return trajectory_id


def _known_role(endpoints: Endpoints, trajectory_id: str, role: str | None) -> tuple[str | None, str | None]:
    """The role to publish under, and a doubt about it. Raises `Rejected` for a role that is not the trajectory's.

    Feedback may come before its trajectory, and must not wait for a warehouse that is away.
    """
    try:
        stored = roles_of(endpoints, trajectory_id)
    except (Unavailable, Forbidden) as error:
        return role, f"whether the trajectory is stored could not be looked up ({error})"
    if not stored:
        return role, f"nothing is stored under {trajectory_id} yet"
    if role is not None and role not in stored:
        raise Rejected(f"trajectory {trajectory_id} has the role {' and '.join(stored)}, not {role}")
    return role or (stored[0] if len(stored) == 1 else None), None
