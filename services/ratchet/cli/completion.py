"""`ratchet completion`: the script that a shell reads to complete our commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage] - no other name

from ratchet.cli.api import call
from ratchet.cli.endpoints import locate
from ratchet.errors import RatchetError
from ratchet.service.discovery import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

app = typer.Typer()

TIMEOUT_S = 1.0
"""Nobody waits longer than this for Tab."""
Json = Any
"""A decoded answer."""


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Whose script.")],
) -> None:
    """Print the completion script of a shell: `source <(ratchet completion bash)`."""

    script = get_completion_script(prog_name="ratchet", complete_var="_RATCHET_COMPLETE", shell=shell)
    typer.echo(script)


def complete_role(context: typer.Context, incomplete: str) -> list[str]:
    """Roles that have a policy, a job or rewards."""
    return _starting(incomplete, _ask(context, "coordinator", "/v1/status", lambda answer: answer["roles"]))


def complete_job(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of training jobs, newest first."""
    found = _ask(context, "coordinator", "/v1/jobs?limit=50", lambda answer: _each(answer["jobs"], "training_job_id"))
    return _starting(incomplete, found)


def complete_policy(context: typer.Context, incomplete: str) -> list[str]:
    """Names of registered policies."""
    return _starting(
        incomplete, _ask(context, "coordinator", "/v1/models", lambda answer: _each(answer["models"], "name"))
    )


def _each(items: list[Json], name: str) -> list[str]:
    return [item[name] for item in items]


def _starting(incomplete: str, names: Iterator[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _ask(context: typer.Context, short: str, path: str, names: Callable[[Json], Any]) -> Iterator[str]:
    """The names in an answer; none when there is no answer, for an error has no place on a half-typed line."""

    directory = context.params.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    try:
        yield from names(call(locate(Path(directory)), short, "GET", path, timeout_s=TIMEOUT_S))
    except RatchetError:
        return
