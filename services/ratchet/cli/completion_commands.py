"""`ratchet completion`: the script that a shell reads to complete our commands."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Whose script.")],
) -> None:
    """Print the completion script of a shell: `source <(ratchet completion bash)`."""
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage] - no other name

    script = get_completion_script(prog_name="ratchet", complete_var="_RATCHET_COMPLETE", shell=shell)
    typer.echo(script)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(completion)
