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
        Path, typer.Option("--directory", "--dir", help="State and logs; emptied of an earlier demo at the start.")
    ] = Path(".ratchet/demo"),
    full: Annotated[
        bool, typer.Option("--full", help="Train the base model and the bad policy too, and promote two policies.")
    ] = False,
    real: Annotated[
        bool, typer.Option("--real", help="SmolLM2-135M-Instruct sorts a shop's mail; takes far longer.")
    ] = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="Roll out prompts over a scripted model; nothing is trained.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live picture.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document at the end, and nothing else.")
    ] = False,
) -> None:
    """Close the whole loop on this machine, in minutes. Exit code 0: every claim of the report holds."""
    if full + real + prompts > 1:
        raise typer.BadParameter("--full, --real and --prompts are three demos: choose one of them")
    needed = [("openai", "demo"), ("chdb", "embedded")]
    needed += [] if prompts else [("torch", "engine"), ("peft", "trainer")]
    for module, extra in [*needed, *([("gguf", "real")] if real else [])]:
        if find_spec(module) is None:
            raise MissingExtra(extra, "the demo")
    from ratchet.local.demo.run import Options, run  # noqa: PLC0415 - it imports those extras

    raise typer.Exit(run(Options(directory, full, real, prompts, plain, as_json)))
