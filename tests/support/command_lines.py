"""Commands as an operator types them: one in a process of its own, and odd lines for every command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from ratchet.cli.__main__ import app
from tools.docs.cli_reference import leaves

Command = Any
"""A command of typer's parser."""

ODD = ["no such/../𝔘\n{", "", "-1", "9" * 400]
"""Wrong as a number, as a role, as an id, as JSON and as a file."""

COMMANDS: list[tuple[tuple[str, ...], Command]] = [
    (words[1:], command) for words, command in leaves(get_command(app)) if words[1:] != ("demo",)
]
"""All but the demo, which takes minutes whatever its directory is called."""

NAMES = [" ".join(words) for words, _ in COMMANDS]
HARMLESS = {("up",): ["--dry-run", "--free-ports"]}
"""Added to a command that would otherwise start something."""


def ratchet(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its environment holds no setting but those of `env`."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**plain, **env},
    )


def lines(words: tuple[str, ...], command: Any, odd: str) -> Iterator[list[str]]:
    """The command with an odd value for every argument, then for each of its options."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    start = [*words, *HARMLESS.get(words, [])]
    yield [*start, "--", *(odd for _ in arguments)]
    for option in command.params:
        if option.param_type_name == "option" and not option.is_flag:
            yield [*start, f"{option.opts[0]}={odd}", "--", *("x" for argument in arguments if argument.required)]
