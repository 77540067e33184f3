"""`ratchet completion`, and the names that the shell offers at Tab: those that the running stack knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage] - no other name

from ratchet.cli.endpoints import locate
from ratchet.core.contract.http.jobs import JobsOut
from ratchet.core.contract.http.models import ModelsOut
from ratchet.core.contract.http.status import StatusOut
from ratchet.core.errors import RatchetError
from ratchet.core.service.discovery import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

T = TypeVar("T")

app = typer.Typer()

TIMEOUT_S = 1.0
"""The longest wait after Tab."""


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Whose script.")],
) -> None:
    """Print the completion script of a shell: `source <(ratchet completion bash)`."""
    script = get_completion_script(prog_name="ratchet", complete_var="_RATCHET_COMPLETE", shell=shell)
    typer.echo(script)


def complete_role(context: typer.Context, incomplete: str) -> list[str]:
    """Roles that have a policy, a job or rewards."""
    return _ask(context, incomplete, "/v1/status", StatusOut, lambda answer: answer.roles)


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of training jobs, newest first."""
    path = "/v1/jobs?limit=50"
    return _ask(context, incomplete, path, JobsOut, lambda answer: [job.training_job_id for job in answer.jobs])


def complete_policy(context: typer.Context, incomplete: str) -> list[str]:
    """Names of registered policies."""
    return _ask(context, incomplete, "/v1/models", ModelsOut, lambda answer: [model.name for model in answer.models])


def _ask(
    context: typer.Context, incomplete: str, path: str, kind: type[T], names: Callable[[T], Iterable[str]]
) -> list[str]:
    """The names in the coordinator's answer; none without an answer: an error has no place on a half-typed line."""
    from ratchet.cli.api import get  # noqa: PLC0415 - many commands have names to complete, and speak no HTTP

    directory = context.params.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    try:
        answer = get(locate(Path(directory)), "coordinator", path, kind, timeout_s=TIMEOUT_S)
    except RatchetError:
        return []
    return [name for name in names(answer) if name.startswith(incomplete)]
