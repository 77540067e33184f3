"""Which trajectories: the options that lists and statistics share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import typer

from ratchet.cli.options import OptionalRole, WithEvaluation, since_of, with_options


class Filters(NamedTuple):
    """What the command line says."""

    only: Mapping[str, Any]
    """By the names of `TrajectoryFilter`, those that are given; `policy` is the version."""
    evaluation: bool
    until: datetime | None

    @property
    def role(self) -> str | None:
        return self.only.get("role")


def filters_of(
    role: OptionalRole = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    outcome: Annotated[
        Literal["success", "partial", "failure", "none"] | None, typer.Option(help="Only with this outcome.")
    ] = None,
    policy: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, metavar="VERSION", help="Only of this version of the policy.")
    ] = None,
    arm: Annotated[
        Literal["stable", "canary", "pinned", "mixed"] | None, typer.Option(help="Only of this arm.")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Only of this domain.")] = None,
    model: Annotated[str | None, typer.Option(help="Only with this model.")] = None,
    profile: Annotated[str | None, typer.Option(help="Only of agents with this profile.")] = None,
    source: Annotated[str | None, typer.Option(help="Only of this source: client, assembled, import:FORMAT.")] = None,
    until: Annotated[
        str | None, typer.Option(help="Only before then: so long ago, or an instant.", metavar="TIME")
    ] = None,
    with_evaluation: WithEvaluation = False,
) -> Filters:
    """Raises `typer.BadParameter` for an `until` that is no time."""
    given = {"role": role, "agent": agent, "outcome": outcome, "policy": policy, "arm": arm, "domain": domain,
             "model": model, "profile": profile, "source": source}  # fmt: skip
    only = {name: value for name, value in given.items() if value is not None}
    return Filters(only, with_evaluation, since_of(until) if until is not None else None)


takes_filters = with_options("filters", filters_of)
