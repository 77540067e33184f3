"""The input of commands: options that several of them share, and JSON from files and standard input.

The conventions of every command:

- `--json` prints exactly one JSON document on standard output, for an error `{"error": {"message", "exit_code"}}`; a
  listing is an object whose list is named after its items: `{"jobs": [...]}`;
- `--dry-run`, of commands that create or change something, checks everything that can be checked, prints the request
  (`output.print_dry_run`) and sends nothing;
- lines about progress go to standard error (`output.progress`);
- a printed follow-up command can be pasted as it is (`output.follow_up`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ratchet.cli.completion import complete_job, complete_role
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.arms import ROLE
from ratchet.core.rules.texts import NAME_CHARACTERS, is_name
from ratchet.core.service.discovery import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE


def checked_role(context: typer.Context, role: str | None) -> str | None:
    """The role as it is. Raises `typer.BadParameter` for a text that cannot be a role's name."""
    if role is not None and not context.resilient_parsing and not ROLE.fullmatch(role):
        raise typer.BadParameter(f"{role!r} is not a role's name: lower-case letters, digits, _ and -, at most 64")
    return role


def checked_roles(context: typer.Context, roles: list[str] | None) -> list[str] | None:
    """Roles as they are. Raises `typer.BadParameter` as `checked_role` does."""
    for role in roles or ():
        checked_role(context, role)
    return roles


def checked_trajectory(context: typer.Context, name: str) -> str:
    """The id or name as it is. Raises `typer.BadParameter` for a text that can be neither."""
    if not context.resilient_parsing and not is_name(name):
        raise typer.BadParameter(f"{name!r} is no trajectory's name: printable, at most {NAME_CHARACTERS} characters")
    return name


def options_beside(context: typer.Context, *kept: str) -> list[str]:
    """The options of the command line, as people write them, other than the parameters named in `kept`.

    `--json` and `--dir` say how a command answers and where it asks: they go with everything.
    """
    apart = {*kept, "as_json", "directory"}
    others = [param for param in context.command.params if param.name not in apart]
    sources = {other.opts[0]: context.get_parameter_source(other.name) for other in others}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def require_no_file(directory: Path) -> None:
    """Raise `Rejected` where a file lies in the place of a directory that a command is to write to."""
    if directory.exists() and not directory.is_dir():
        raise Rejected(f"{directory} is a file: name a directory to write to")


Directory = Annotated[
    Path, typer.Option("--dir", help="State directory of the stack.", envvar=DIRECTORY_VARIABLE, show_default=True)
]
HERE = DEFAULT_DIRECTORY
"""The default of `Directory`."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words and tables.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, print what would be sent, and send nothing.")]
RoleOption = Annotated[
    str, typer.Option("--role", help="The role.", callback=checked_role, autocompletion=complete_role)
]
OptionalRole = Annotated[
    str | None, typer.Option("--role", help="Only this role.", callback=checked_role, autocompletion=complete_role)
]
WithEvaluation = Annotated[
    bool,
    typer.Option(
        "--with-evaluation",
        help="Also runs of `ratchet eval` and of the held-out gate: those whose calls asked for a version by name.",
    ),
]
RoleArgument = Annotated[str, typer.Argument(help="The role.", callback=checked_role, autocompletion=complete_role)]
RolesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="The role; `default` when absent. Several: a job for each.",
        metavar="ROLE...",
        callback=checked_roles,
        autocompletion=complete_role,
    ),
]
OptionalRoleArgument = Annotated[
    str | None, typer.Argument(help="One role; all when absent.", callback=checked_role, autocompletion=complete_role)
]
Since = Annotated[
    str, typer.Option(help="Only from then on: so long ago (30m, 12h, 7d, 4w), or an instant.", metavar="TIME")
]
TrajectoryArgument = Annotated[
    str,
    typer.Argument(
        metavar="TRAJECTORY",
        help="Its id, the beginning of that, `latest` or `support@latest`; or the name of x-ratchet-trajectory,"
        " x-ratchet-run or /t/NAME: the first run of that name.",
        callback=checked_trajectory,
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, the beginning of it, `latest` or `support@latest`.",
        autocompletion=complete_job,
    ),
]


_AGO = re.compile(r"(\d+)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def since_of(text: str) -> datetime:
    """The instant that `7d`, `12h` or an ISO instant names; without a zone it is UTC. Raises `typer.BadParameter`."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        if ago is not None:
            raise typer.BadParameter(f"{text!r} goes back before the year 1: name a shorter time") from error
        raise typer.BadParameter(f"{text!r} is neither a time like 30m, 12h, 7d or 4w nor an instant") from error


def json_in(text: bytes, named: str) -> object:
    """The document in `text`. Raises `Rejected`, also for a document that is nested too deeply to be read."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Rejected(f"{named} is not JSON: {error}") from error


def json_file(path: Path) -> object:
    """The document in a file. Raises `NotFound` or `Rejected`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error
    return json_in(text, str(path))


def with_options(name: str, made_by: Callable[..., object]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Commands that share options: each has those of `made_by` in the place of its parameter `name`, which gets what
    `made_by` makes of them.
    """
    shared = inspect.signature(made_by, eval_str=True).parameters

    def share(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:  # of any type: each option has its own
            made = made_by(**{option: given.pop(option) for option in shared})
            command(**given, **{name: made})

        own = inspect.signature(command, eval_str=True).parameters.values()
        shown = [option for param in own for option in (shared.values() if param.name == name else (param,))]
        plain = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in shown]
        run.__signature__ = inspect.Signature(plain)  # pyright: ignore[reportAttributeAccessIssue] - `inspect` reads it
        return run

    return share
