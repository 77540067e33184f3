"""What the shell offers when somebody presses Tab: names that the running stack knows. Silent when none runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ratchet.service.discovery import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

TIMEOUT_S = 1.0
"""Nobody waits longer than this for Tab."""

Json = Any
"""A decoded answer."""


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
    from ratchet.cli.api import call  # noqa: PLC0415 - Tab on options and commands does not pay for HTTP
    from ratchet.cli.endpoints import locate  # noqa: PLC0415
    from ratchet.errors import RatchetError  # noqa: PLC0415

    directory = context.params.get("directory") or os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    try:
        yield from names(call(locate(Path(directory)), short, "GET", path, timeout_s=TIMEOUT_S))
    except RatchetError:
        return
