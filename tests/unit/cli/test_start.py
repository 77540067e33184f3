"""A command imports its own module only, and the list of commands imports no command."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from ratchet.cli.__main__ import app
from ratchet.cli.commands import COMMANDS, GROUPS, imported

HEAVY = {"pydantic", "pydantic_core", "httpx", "nats", "aiohttp", "boto3", "msgspec", "structlog", "pygments"}
MODULES = "; ".join(
    (
        "import atexit, sys",
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))",
        "from ratchet.cli.__main__ import main",
        "raise SystemExit(main())",
    )
)
"""Runs a command, then lists the imported modules on standard error."""


def run(*words: str, **env: str) -> tuple[str, set[str]]:
    """The output of the command, and the modules that it has imported."""
    command = [sys.executable, "-c", MODULES, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env={**os.environ, **env})
    return done.stdout, set(done.stderr.split())


def nouns(modules: set[str]) -> set[str]:
    known = {f"ratchet.cli.{entry.module}" for entry in (*COMMANDS.values(), *GROUPS.values())}
    return modules & known


def test_the_list_of_commands_imports_no_command_and_nothing_heavy() -> None:
    text, modules = run("--help")
    assert "deadletters" in text
    assert nouns(modules) | (modules & (HEAVY - {"pygments"})) == set()


def test_a_command_imports_no_other() -> None:
    assert nouns(run("completion", "bash")[1]) == {"ratchet.cli.completion"}


def test_the_names_of_commands_are_completed_without_importing_them() -> None:
    text, modules = run(_RATCHET_COMPLETE="complete_bash", COMP_WORDS="ratchet pol", COMP_CWORD="1")
    assert text.split() == ["policies"]
    assert nouns(modules) | (modules & (HEAVY | {"rich"})) == set()


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_a_command_has_the_same_help_in_the_list_and_by_itself(name: str) -> None:
    listed: Any = get_command(app)
    entry, command = listed.commands[name], imported(listed.commands[name])
    assert (entry.name, entry.help) == (command.name, " ".join(command.help.split("\n\n")[0].split()))
