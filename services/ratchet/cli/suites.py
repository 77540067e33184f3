"""`ratchet suites`: which suites of tasks there are, and what they ask."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson
from ratchet.cli.output import console, print_answer, print_section, print_table
from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.evaluation.suites import SUITES, suite_named, suite_tasks
from ratchet.core.evaluation.task_files import TaskFile
from ratchet.core.plugins import Plugin
from ratchet.core.rules.chat import text_of

app = typer.Typer(no_args_is_help=True)

SHOWN = 10
"""Tasks in a table, spread over the suite; `--json` has all of them."""


@app.command("list")
def list_suites(as_json: AsJson = False) -> None:
    """List the suites, those of other packages included. Exit code 3: one cannot be used."""
    rows = [_row(plugin) for plugin in SUITES.plugins(load=False)]
    columns = ("suite", "task type", "tasks", "from", "shows, or why it is refused")
    print_answer(
        {"suites": rows}, as_json, lambda: print_table(columns, [(*row.values(),) for row in rows], "no suites")
    )
    raise typer.Exit(ExitCode.PARTLY if any(row["tasks"] is None for row in rows) else ExitCode.DONE)


def _row(plugin: Plugin) -> dict[str, object]:
    task_type, tasks, shows = None, None, plugin.refused
    try:
        if shows is None:
            suite, tasks = suite_named(plugin.name), len(suite_tasks(plugin.name).tasks)
            task_type, shows = suite.task_type, suite.summary
    except (ConfigError, Rejected) as error:
        shows = str(error)
    return {"name": plugin.name, "task_type": task_type, "tasks": tasks, "package": plugin.package, "shows": shows}


@app.command("show")
def show_suite(
    name: Annotated[str, typer.Argument(help="A suite of `ratchet suites list`.")], as_json: AsJson = False
) -> None:
    """Show what a suite asks and expects; `--json` has every task, as a task file holds them."""
    suite, file = suite_named(name), suite_tasks(name)
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
