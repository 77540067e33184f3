"""A command imports what it runs, and the list of commands imports none of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
from typer import rich_utils
from typer.main import get_command

from ratchet.cli.__main__ import app
from ratchet.cli.commands import COMMANDS, GROUPS, imported
from ratchet.cli.help import draw_help

HEAVY = {"pydantic", "pydantic_core", "httpx", "nats", "aiohttp", "boto3", "msgspec", "structlog", "pygments"}
MODULES = "; ".join(
    (
        "import atexit, sys",
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))",
        "from ratchet.cli.__main__ import main",
        "raise SystemExit(main())",
    )
)
"""Runs a command, then says on standard error what was imported for it."""


def run(*words: str, **env: str) -> tuple[str, set[str]]:
    """What the command prints, and which modules it has imported."""
    command = [sys.executable, "-c", MODULES, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **env})
    return done.stdout, set(done.stderr.split())


def nouns(modules: set[str]) -> set[str]:
    known = {f"ratchet.cli.{entry.module}" for entry in (*COMMANDS.values(), *GROUPS.values())}
    return modules & known


def test_the_list_of_commands_imports_no_command_and_nothing_heavy() -> None:
    text, modules = run("--help")
    assert "deadletters" in text
    assert nouns(modules) | (modules & (HEAVY | {"rich.markdown", "rich.traceback"})) == set()


def test_a_command_imports_no_other() -> None:
    assert nouns(run("completion", "bash")[1]) == {"ratchet.cli.completion"}


def test_the_names_of_commands_are_completed_without_importing_them() -> None:
    text, modules = run(_RATCHET_COMPLETE="complete_bash", COMP_WORDS="ratchet pol", COMP_CWORD="1")
    assert text.split() == ["policies"]
    assert nouns(modules) | (modules & (HEAVY | {"rich"})) == set()


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    listed: Any = get_command(app)
    entry, command = listed.commands[name], imported(listed.commands[name])
    assert (entry.name, entry.help) == (command.name, " ".join(command.help.split("\n\n")[0].split()))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_the_help_is_drawn_as_typer_draws_it(width: int, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", terminal or None)
    for name in ("GITHUB_ACTIONS", "PY_COLORS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    root: Any = get_command(app)
    with root.make_context("ratchet", ["up"], resilient_parsing=True) as context:
        ours, theirs = io.StringIO(), io.StringIO()
        with redirect_stdout(ours):
            draw_help(root, context)
        with redirect_stdout(theirs):
            rich_utils.rich_format_help(obj=root, ctx=context, markup_mode="rich")
    assert ("\x1b[" in ours.getvalue()) == terminal
    assert ours.getvalue() == theirs.getvalue()
