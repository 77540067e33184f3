"""`ratchet suites`: which suites of tasks there are, and what they ask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ratchet.cli.completion import complete_role
from ratchet.cli.connections import objects_of
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import HERE, AsJson, Directory
from ratchet.cli.output import console, print_answer, print_section, print_table
from ratchet.core.errors import ConfigError, NotFound, Rejected
from ratchet.core.evaluation.suites import HELDOUT, SUITES, suite_named, suite_tasks
from ratchet.core.evaluation.task_files import MOST_BYTES, TaskFile, parse_tasks, read_task_file
from ratchet.core.plugins import Plugin
from ratchet.core.rules.chat import text_of
from ratchet.core.rules.engines import ANY_ROLE

app = typer.Typer(no_args_is_help=True)

SHOWN = 10
"""Tasks in a table, spread over the suite; `--json` has all of them."""
TASK_FILES, SAFETY_SUITES = "RATCHET_CANARY_TASK_FILES", "RATCHET_CANARY_SAFETY_SUITES"
"""Name the files of suites whose tasks are a role's own."""


class _Plan(msgspec.Struct, frozen=True):
    """Of a role, in the setting `SAFETY_SUITES`."""

    regression: str | None = None


@app.command("list")
def list_suites(as_json: AsJson = False) -> None:
    """List the suites, those of other packages included. Exit code 3: one cannot be used."""
    rows = [_row(plugin) for plugin in SUITES.plugins(load=False)]
    columns = ("suite", "task type", "tasks", "from", "shows, or why it is refused")
    print_answer(
        {"suites": rows}, as_json, lambda: print_table(columns, [(*row.values(),) for row in rows], "no suites")
    )
    raise typer.Exit(ExitCode.PARTLY if any(row["task_type"] is None for row in rows) else ExitCode.DONE)


def _row(plugin: Plugin) -> dict[str, object]:
    task_type, tasks, shows = None, None, plugin.refused
    try:
        if shows is None:
            suite = suite_named(plugin.name)
            tasks = "of the role" if suite.tasks is None else len(suite_tasks(plugin.name).tasks)
            task_type, shows = suite.task_type, suite.summary
    except (ConfigError, Rejected) as error:
        shows = str(error)
    return {"name": plugin.name, "task_type": task_type, "tasks": tasks, "package": plugin.package, "shows": shows}


@app.command("show")
def show_suite(
    name: Annotated[str, typer.Argument(help="A suite of `ratchet suites list`.")],
    role: Annotated[
        str | None,
        typer.Option(help="Whose tasks, of a suite that has those of roles.", autocompletion=complete_role),
    ] = None,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Show what a suite asks and expects; `--json` has every task, as a task file holds them."""
    suite, file = suite_named(name), tasks_of(name, [role] if role else [], locate(directory))
    answer = {
        "name": name,
        "task_type": suite.task_type,
        "digest": file.digest,
        "tasks": [graded.task for graded in file.tasks],
    }
    print_answer(answer, as_json, lambda: _draw(suite.summary, file))


def _draw(summary: str, file: TaskFile) -> None:
    console.print(f"{summary} {len(file.tasks)} tasks, digest {file.digest[:12]}", markup=False)
    chosen = file.tasks[:: max(1, len(file.tasks) // SHOWN)][:SHOWN]
    rows = [(graded.task.id, text_of(graded.task.messages[-1].get("content"))) for graded in chosen]
    print_section(("task", "asks"), rows)


def tasks_of(name: str, roles: Sequence[str], endpoints: Endpoints) -> TaskFile:
    """The tasks of a suite; of one whose tasks are a role's own, those of the file that the deployer's setting names
    for the first of `roles` that has one.

    Raises `NotFound` where none has, what `suite_tasks` raises, and `Rejected` for a bad file.
    """
    if suite_named(name).tasks is not None or not roles:
        return suite_tasks(name)
    variable = TASK_FILES if name == HELDOUT else SAFETY_SUITES
    place = _place(endpoints.env.get(variable, ""), variable, roles)
    if place is None:
        missing = f"{variable} names no task file of {' or '.join(roles)} for suite {name}"
        raise NotFound(f"{missing}: set it, or give the file as --tasks")
    if place.startswith("s3://"):
        return parse_tasks(objects_of(endpoints).get_part(place, 0, MOST_BYTES + 1), place)
    return read_task_file(Path(place))


def _place(setting: str, variable: str, roles: Sequence[str]) -> str | None:
    if setting and not setting.lstrip().startswith("{"):
        return setting  # one path for all roles
    try:
        by_role = msgspec.json.decode(setting or "{}", type=dict[str, str | _Plan])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{variable}: {error}") from error
    own = next((by_role[role] for role in roles if role in by_role), by_role.get(ANY_ROLE))
    return own.regression if isinstance(own, _Plan) else own
