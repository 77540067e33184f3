"""Makes docs/cli.md, the reference of the command line, from the parser.

python -m tools.docs.cli_reference           write the page
python -m tools.docs.cli_reference --check   exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.main import get_command

from ratchet.cli.__main__ import app
from ratchet.cli.commands import imported
from ratchet.cli.examples import EXAMPLES
from ratchet.cli.exit_codes import ExitCode

Command = Any
"""A command of typer's parser; typer keeps the types of its parts to itself."""
Parameter = Any
"""An argument or option of a command."""

KINDS = {str: "TEXT", Path: "PATH", int: "INTEGER", float: "NUMBER"}

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"

HEAD = """# The `ratchet` command

Generated from the parser by `make docs`; do not edit.

Conventions:

- `--json` prints exactly one JSON document on standard output; an error is `{"error": {"message", "exit_code"}}`
  there, and one line on standard error all the same. Progress goes to standard error, and only to a terminal. Of
  `trajectories tail`, which has no end, it is a document for each line.
- `--json` of a listing is an object that names its list: `{"jobs": [...]}`, newest first, and so `trajectories`,
  `preferences` and `deadletters`; by name `{"roles": [...]}` (`policies list`), `rollouts` and `topics`.
- `--dry-run` checks what can be checked, prints what would be sent, and sends nothing.
- `--dir` (or `RATCHET_DIR`) says which local stack is meant. `RATCHET_NATS_URL`, `RATCHET_CLICKHOUSE_URL`,
  `RATCHET_S3_ENDPOINT` and `RATCHET_<SERVICE>_URL` lead to a system that runs elsewhere.
- A job, trajectory, snapshot or key is named by its id, by the beginning of the id (4 characters or more; an error
  names the candidates where several begin so), or by `latest`; a job, trajectory, snapshot or policy also by
  `support@latest`, the newest of a role. Tables on a terminal show such beginnings; files, pipes and `--json` get whole
  ids.
- `--watch` shows an answer again every two seconds, in its place on a terminal, elsewhere whenever it has changed; a
  service that is away is named, and the watch goes on. Ctrl-C ends it with exit code 130.
- `ratchet --version` prints the version.
- `NO_COLOR` is obeyed; a pipe gets whole lines.

"""

COMPLETION = """
## Shell completion

`ratchet --install-completion` sets up the shell that it is called from; `ratchet completion bash` prints the script, as
for `zsh` and `fish`. Roles, jobs and policies are completed from the running stack.
"""


def reference(app: typer.Typer) -> str:
    """The whole page."""
    commands = list(leaves(get_command(app)))
    codes = "".join(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)
    firsts = ((words, _cell(_text(command.help).split(". ")[0].rstrip("."))) for words, command in commands)
    overview = "".join(f"| `{' '.join(words)}` | {first}. |\n" for words, first in firsts)
    parts = [
        HEAD,
        f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}",
        f"\n## Commands\n\n| command | does |\n|---|---|\n{overview}",
        COMPLETION,
    ]
    for words, command in commands:
        parameters: list[Parameter] = [param for param in command.params if not getattr(param, "hidden", False)]
        arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
        options = [
            parameter for parameter in parameters if parameter.param_type_name == "option" and parameter.name != "help"
        ]
        usage = " ".join([*words, *map(_placeholder, arguments), *(["[OPTIONS]"] if options else [])])
        rows = [
            f"| `{_placeholder(argument)}` | {_cell(argument.help)} | {_default(argument)} |\n"
            for argument in arguments
        ]
        rows += map(_option_row, options)
        table = "| | | default |\n|---|---|---|\n" + "".join(rows) if rows else ""
        about = f"{_text(command.help)}\n\n```\n{usage}\n```\n"
        parts.append(f"\n### {' '.join(words)}\n\n```\n{examples_of(words)}\n```\n\n{about}\n{table}")
    return "".join(parts)


def leaves(command: Command, words: tuple[str, ...] = ("ratchet",)) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command below `command` that works by itself, with the words that call it, in the parser's order."""
    below: dict[str, Command] = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield words, command
    for name, child in below.items():
        if not child.hidden:
            yield from leaves(imported(child), (*words, name))


def examples_of(words: tuple[str, ...]) -> str:
    """The examples of a command, a line each. Raises `LookupError` for a command that has none."""
    try:
        return "\n".join(EXAMPLES[" ".join(words[1:])])
    except KeyError:
        raise LookupError(f"add two examples of `{' '.join(words)}` to ratchet/cli/examples.py") from None


def _option_row(option: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    annotation: Any = option.type_descriptor.annotation  # `Any`: an option may have any annotation
    if get_origin(annotation) is Literal:
        looks = "\\|".join(map(str, get_args(annotation)))
    else:
        (inner,) = get_args(annotation)[:1] or (annotation,)
        looks = KINDS.get(inner, "TEXT")
    least, most = option.min, option.max
    bounds = ""
    if most is not None:
        bounds = f" From {least or 0:g} to {most:g}."
    elif least is not None:
        bounds = f" At least {least:g}."
    from_environment = f" Also `{option.envvar}`." if option.envvar else ""
    repeatable = " Repeatable." if option.multiple and "repeatable" not in (option.help or "") else ""
    words = f"{_cell(option.help)}{bounds}{from_environment}{repeatable}"
    return f"| {names}{'' if option.is_flag else f' `{looks}`'} | {words} | {_default(option)} |\n"


def _placeholder(argument: Parameter) -> str:
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    flag = getattr(parameter, "is_flag", False)
    return "" if value in (None, "", False) or flag or callable(value) else f"`{value}`"


def _text(words: str | None) -> str:
    return " ".join((words or "").split())


def _cell(words: str | None) -> str:
    return _text(words).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    """Write, or compare."""
    text = reference(app)
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.stderr.write("docs/cli.md is out of date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
