"""Every command keeps the conventions that docs/cli.md states."""

from __future__ import annotations

import re
from typing import Any

import pytest
from typer.main import get_command

from ratchet.cli.__main__ import app
from tools.docs.cli_reference import leaves

COMMANDS = [(" ".join(words[1:]), command) for words, command in leaves(get_command(app))]
CREATES = re.compile(
    r"up|train|feedback|import .*|rollout (?!status|audit|history).*"
    r"|deadletters replay|preferences (derive|add)|policies export|bundles (create|export|apply)"
)
NO_CHOICE = {"completion", "contract openapi", "contract asyncapi"}
"""What they print has one form: a script, a document."""


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_command_speaks_json_and_tries_what_it_would_create(name: str, command: Any) -> None:
    assert "--json" in options(command) or name in NO_CHOICE
    assert "--dry-run" in options(command) or not CREATES.fullmatch(name)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_command_and_all_that_it_takes_is_explained(name: str, command: Any) -> None:
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []
