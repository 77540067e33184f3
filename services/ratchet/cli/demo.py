"""`ratchet demo`: the whole loop on this machine, in minutes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ratchet.core.errors import MissingExtra

app = typer.Typer()


@app.command()
def demo(
    directory: Annotated[
        Path, typer.Option("--directory", "--dir", help="State and logs; emptied at the start.")
    ] = Path(".ratchet/demo"),
    full: Annotated[
        bool, typer.Option("--full", help="Train the base model and the bad policy too, and promote two policies.")
    ] = False,
    real: Annotated[
        bool, typer.Option("--real", help="SmolLM2-135M-Instruct sorts a shop's mail; takes far longer.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live picture.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end, and nothing else.")
    ] = False,
) -> None:
    """Close the whole loop on this machine, in minutes. Exit code 0: every claim of the report holds."""
    if full and real:
        raise typer.BadParameter("--full is the tiny model's, --real another one's: choose one of them")
    needed = [("openai", "demo"), ("torch", "engine"), ("peft", "trainer"), ("chdb", "embedded")]
    for module, extra in [*needed, *([("gguf", "real")] if real else [])]:
        if find_spec(module) is None:
            raise MissingExtra(extra, "the demo")
    from ratchet.local.demo.run import Options, run  # noqa: PLC0415 - it imports those extras

    raise typer.Exit(run(Options(directory, full=full, real=real, plain=plain, as_json=as_json)))
