"""Commands as an operator types them: in a process of their own or in this one, and odd lines for every command."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import structlog
from typer.main import get_command

from ratchet.cli.__main__ import app, main
from ratchet.cli.exit_codes import ExitCode
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
HARMLESS = {("up",): ["--dry-run", "--free-ports"], ("bundles", "create"): ["--dry-run"]}
"""Added to a command that would otherwise start or register something."""


def ratchet(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its environment holds no setting but those of `env`."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        [sys.executable, "-m", "ratchet.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**plain, **env},
    )


class Ended(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


class Shell:
    """Types commands in the process of the test, which takes a second less than a process of their own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    async def ended(self, *words: str, **env: str) -> Ended:
        """A command that has run to its end; `env` are settings of its own."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            self._capsys.readouterr()
            code = await asyncio.to_thread(main, words)
        ended = Ended(code, *self._capsys.readouterr())
        assert "Traceback" not in ended.err
        return ended

    async def __call__(self, *words: str, code: int = 0) -> str:
        """The output of a command that ends with `code`; of a failure, its standard error."""
        ended = await self.ended(*words)
        assert ended.code == code, ended
        return ended.err if code in (ExitCode.FAILED, ExitCode.USAGE) else ended.out

    async def json(self, *words: str, code: int = 0) -> Any:
        """The document of a command with `--json`."""
        return json.loads(await self(*words, "--json", code=code))


@contextmanager
def shell(environment: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A shell whose commands have these settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        # The services of the test run in this process too, and would write their log between a command's words.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        yield Shell(capsys)


def lines(words: tuple[str, ...], command: Any, odd: str) -> Iterator[list[str]]:
    """The command with an odd value for every argument, then for each of its options."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    start = [*words, *HARMLESS.get(words, [])]
    yield [*start, "--", *(odd for _ in arguments)]
    for option in command.params:
        if option.param_type_name == "option" and not option.is_flag:
            yield [*start, f"{option.opts[0]}={odd}", "--", *("x" for argument in arguments if argument.required)]
