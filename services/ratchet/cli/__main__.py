"""The `ratchet` command: runs a command line, and turns an error into one line and an exit code."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.main import get_command

from ratchet.cli.commands import Root
from ratchet.cli.exit_codes import ExitCode, NoStack
from ratchet.core.errors import RatchetError


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version as version_of  # noqa: PLC0415 - slow, and rarely asked for

        sys.stdout.write(f"ratchet {version_of('ratchet-rl')}\n")
        raise typer.Exit(ExitCode.DONE)


app = typer.Typer(
    name="ratchet",
    cls=Root,
    epilog="Exit codes: " + "; ".join(f"{code.value} {code.meaning}" for code in ExitCode) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The learning loop for LLM agents in production: collect, reward, train, canary, roll back."""


@functools.cache
def command() -> Any:  # typer keeps the type of its commands to itself
    """The parser of every command line, made once a process."""
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; an error of the tree is one line, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what a terminal cannot show has an escape there, and is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        result: object = command()(words, standalone_mode=False, prog_name="ratchet")
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")
        if not message:  # a group without a command has shown its help by now
            return error.exit_code
        context: typer.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "ratchet"
        return _failed(f"{message}; see `{path} --help`", error.exit_code, as_json="--json" in words)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except RatchetError as error:
        code = ExitCode.NO_STACK if isinstance(error, NoStack) else ExitCode.FAILED
        return _failed(str(error), code, as_json="--json" in words)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _failed(message, ExitCode.FAILED, as_json="--json" in words)
    return result if isinstance(result, int) else ExitCode.DONE


def _failed(message: str, code: int, *, as_json: bool) -> int:
    """Print the error: a line for people and, with `--json`, the document for programs."""
    from ratchet.core.rules.texts import shown  # noqa: PLC0415 - an error alone pays for what it imports

    if as_json:
        sys.stdout.write(json.dumps({"error": {"message": message, "exit_code": int(code)}}) + "\n")
    sys.stderr.write(f"ratchet: {shown(message)}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
