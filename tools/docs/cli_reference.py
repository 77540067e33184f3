"""The reference of the command line, read from the parser itself: docs/cli.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.main import get_command

from ratchet.cli.commands import imported
from ratchet.cli.exit_codes import ExitCode

Command = Any
"""A command of typer's parser; typer keeps the types of its parts to itself."""
Parameter = Any
"""An argument or option of a command."""

KINDS = {str: "TEXT", Path: "PATH", int: "INTEGER", float: "NUMBER"}

HEAD = """# The `ratchet` command

Generated from the parser by `make docs`; do not edit.

Conventions:

- `--json` prints exactly one JSON document on standard output; an error is `{"error": {"message", "exit_code"}}`
  there, and one line on standard error all the same. Progress goes to standard error, and only to a terminal.
- `--json` of a listing is an object that names what it lists: `{"jobs": [...]}`, newest first, and so `trajectories`,
  `preferences` and `deadletters`; by name `{"roles": [...]}` (`policies list`), `rollouts` and `topics`.
- `--dry-run` checks what can be checked, prints what would be sent, and sends nothing.
- `--dir` (or `RATCHET_DIR`) says which local stack is meant. `RATCHET_NATS_URL`, `RATCHET_CLICKHOUSE_URL`,
  `RATCHET_S3_ENDPOINT` and `RATCHET_<SERVICE>_URL` lead to a system that runs elsewhere.
- `ratchet --version` prints the version.
- `NO_COLOR` is obeyed; a pipe gets whole lines.

"""

COMPLETION = """
## Shell completion

`ratchet --install-completion` sets up the shell that it is called from; `ratchet completion bash` prints the script, as
for `zsh` and `fish`. Roles, jobs and policies are completed from the running stack.
"""


def reference(app: typer.Typer) -> str:
    """The whole text."""
    root: Command = get_command(app)
    parts = [HEAD, _exit_codes(), _overview(root), COMPLETION]
    parts += [_section(words, command) for words, command in leaves(root)]
    return "".join(parts)


def leaves(command: Command, words: tuple[str, ...] = ("ratchet",)) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command that does something, with the words that call it, in the parser's order."""
    below: dict[str, Command] = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name, one in below.items():
        if not one.hidden:
            yield from leaves(imported(one), (*words, name))


def _exit_codes() -> str:
    rows = "".join(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)
    return f"## Exit codes\n\n| code | meaning |\n|---|---|\n{rows}"


def _overview(root: Command) -> str:
    rows = "".join(f"| `{' '.join(words)}` | {_first_sentence(command)} |\n" for words, command in leaves(root))
    return f"\n## Commands\n\n| command | does |\n|---|---|\n{rows}"


def _section(words: tuple[str, ...], command: Command) -> str:
    parameters: list[Parameter] = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option" and one.name != "help"]
    usage = " ".join([*words, *(_placeholder(one) for one in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [*map(_argument_row, arguments), *map(_option_row, options)]
    table = "| | | default |\n|---|---|---|\n" + "".join(rows) if rows else ""
    return f"\n### {' '.join(words)}\n\n```\n{usage}\n```\n\n{_text(command.help)}\n\n{table}"


def _argument_row(argument: Parameter) -> str:
    return f"| `{_placeholder(argument)}` | {_cell(argument.help)} | {_default(argument)} |\n"


def _option_row(option: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else f" `{_kind(option.type_descriptor.annotation)}`"
    from_environment = f" Also `{option.envvar}`." if option.envvar else ""
    repeatable = " Repeatable." if option.multiple and "repeatable" not in (option.help or "") else ""
    words = f"{_cell(option.help)}{_bounds(option)}{from_environment}{repeatable}"
    return f"| {names}{kind} | {words} | {_default(option)} |\n"


def _kind(annotation: Any) -> str:  # `Any`: whatever an option may be annotated with
    """How a value looks: `up\\|down`, `PATH`, `NUMBER`."""
    if get_origin(annotation) is Literal:
        return "\\|".join(map(str, get_args(annotation)))
    (inner,) = get_args(annotation)[:1] or (annotation,)
    return KINDS.get(inner, "TEXT")


def _bounds(option: Parameter) -> str:
    least, most = option.min, option.max
    if least is None and most is None:
        return ""
    return f" At least {least:g}." if most is None else f" From {least or 0:g} to {most:g}."


def _placeholder(argument: Parameter) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    flag = getattr(parameter, "is_flag", False)
    return "" if value in (None, "", False) or flag or callable(value) else f"`{value}`"


def _first_sentence(command: Command) -> str:
    return _cell(_text(command.help).split(". ")[0].rstrip(".")) + "."


def _text(words: str | None) -> str:
    return " ".join((words or "").split())


def _cell(words: str | None) -> str:
    return _text(words).replace("|", "\\|")
