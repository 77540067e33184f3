"""Every command has two examples, which its own parser accepts, and a place in the help."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ratchet.cli.__main__ import app, main
from ratchet.cli.commands import COMMANDS, GROUPS, HEADINGS
from ratchet.cli.examples import EXAMPLES
from tools.docs.cli_reference import leaves

LEAVES = {" ".join(words[1:]) for words, _ in leaves(get_command(app))}
LINES = [(words, line) for words, lines in EXAMPLES.items() for line in lines]


def parsed(line: str) -> str:
    """The words of the command that a line calls, all of it parsed and nothing run. Raises as the parser does."""
    command: Any = get_command(app)  # a command of typer's own parser
    words, (_, *rest), context = list[str](), shlex.split(line), None
    while True:
        context = command.make_context(words[-1] if words else "ratchet", rest, parent=context)
        rest = [*context._protected_args, *context.args]
        if not hasattr(command, "commands") or not rest:
            return " ".join(words)
        name, command, rest = command.resolve_command(context, rest)
        words.append(name)


def test_every_command_has_two_examples() -> None:
    assert EXAMPLES.keys() == LEAVES
    assert {words: len({*lines}) for words, lines in EXAMPLES.items() if len({*lines}) != 2} == {}


@pytest.mark.parametrize(("words", "line"), LINES, ids=[line for _, line in LINES])
def test_an_example_is_one_that_its_command_accepts(
    words: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = re.search(r"ratchet .*?(?=\)|$)", line)
    assert call is not None
    assert parsed(call[0]) == words


def test_every_command_stands_once_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert [heading for heading in HEADINGS if heading not in printed] == []
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted([*COMMANDS, *GROUPS])


def test_the_help_of_a_command_ends_with_its_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("cancel", "jobs show", "jobs"):
        assert main([*words.split(), "--help"]) == 0
        lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
        assert lines[-3:] == ["Examples:", *EXAMPLES[words]]
