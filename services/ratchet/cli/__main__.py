"""The `ratchet` command: its groups of commands, and what becomes of an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version as version_of
from typing import Annotated, Any

import typer
from typer.main import get_command

from ratchet.cli import (
    completion_commands,
    contract_commands,
    dataset_commands,
    deadletter_commands,
    demo_commands,
    export_commands,
    feedback_commands,
    import_commands,
    job_commands,
    policy_commands,
    preferences_commands,
    rollout_commands,
    stack_commands,
    status_commands,
    trajectory_commands,
)
from ratchet.cli.exit_codes import ExitCode, exit_code_of
from ratchet.errors import RatchetError


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"ratchet {version_of('ratchet-rl')}\n")
        raise typer.Exit(ExitCode.DONE)


app = typer.Typer(
    name="ratchet",
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


for group in (
    stack_commands,
    status_commands,
    job_commands,
    feedback_commands,
    demo_commands,
    completion_commands,
):
    group.register(app)
app.add_typer(import_commands.app, name="import")
app.add_typer(export_commands.app, name="export")
app.add_typer(trajectory_commands.app, name="trajectories")
app.add_typer(policy_commands.app, name="policies")
app.add_typer(dataset_commands.app, name="dataset")
app.add_typer(preferences_commands.app, name="preferences")
app.add_typer(rollout_commands.app, name="rollout")
app.add_typer(deadletter_commands.app, name="deadletters")
app.add_typer(contract_commands.app, name="contract")


@cache
def _command() -> Any:  # `Any`: typer keeps the type of its commands to itself
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of the process; an error that we know is one line, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        result: object = _command()(words, standalone_mode=False, prog_name="ratchet")
    except typer.TyperException as error:
        return _wrong_usage(error, as_json="--json" in words)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except RatchetError as error:
        return _failed(str(error), exit_code_of(error), as_json="--json" in words)
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _failed(said, ExitCode.FAILED, as_json="--json" in words)
    return result if isinstance(result, int) else ExitCode.DONE


def _wrong_usage(error: typer.TyperException, *, as_json: bool) -> int:
    """A group without a command has shown its help by now, and has nothing more to say."""
    context: typer.Context | None = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ratchet"
    message = error.format_message().rstrip(".")
    if not message:
        return error.exit_code
    return _failed(f"{message}; see `{path} --help`", error.exit_code, as_json=as_json)


def _failed(message: str, code: int, *, as_json: bool) -> int:
    """Say what is wrong: a line for people and, where it was asked for, the document for programs."""
    if as_json:
        sys.stdout.write(json.dumps({"error": {"message": message, "exit_code": int(code)}}) + "\n")
    sys.stderr.write(f"ratchet: {message}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
