"""`ratchet feedback`: what a person thinks of a trajectory."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ratchet.cli.options import DEFAULT_DIRECTORY, Directory


def feedback(
    trajectory_id: Annotated[str, typer.Argument(help="The trajectory, as in the x-ratchet-trajectory header.")],
    thumbs: Annotated[Literal["up", "down"] | None, typer.Option(help="Thumbs up or down.")] = None,
    stars: Annotated[float | None, typer.Option(min=0, max=5, help="0 to 5 stars.")] = None,
    comment: Annotated[str | None, typer.Option(help="Words.")] = None,
    role: Annotated[str | None, typer.Option(help="The trajectory's role.")] = None,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Give feedback on a trajectory; its reward is computed anew."""
    from ratchet.cli.api import call
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console
    from ratchet.kernel.errors import Rejected

    given: list[tuple[str, object]] = []
    if thumbs is not None:
        given.append(("thumbs", thumbs == "up"))
    if stars is not None:
        given.append(("rating", stars))
    if comment is not None:
        given.append(("comment", comment))
    if not given:
        raise Rejected("say something: --thumbs up|down, --stars 0..5 or --comment TEXT")
    endpoints = locate(directory)
    for kind, value in given:
        body = {"trajectory_id": trajectory_id, "kind": kind, "value": value, **({"role": role} if role else {})}
        call(endpoints, "gateway", "POST", "/v1/feedback", body)
    console.print(f"noted {', '.join(kind for kind, _ in given)} for trajectory {trajectory_id}")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(feedback)
