"""`ratchet model`: a base model's directory, as `--base-model` takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.options import AsJson
from ratchet.cli.output import print_answer
from ratchet.core.errors import MissingExtra, Rejected

app = typer.Typer()


@app.command()
def model(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="`smollm2`, or a GGUF file of its kind.")],
    output: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="A new or empty directory.")],
    as_json: AsJson = False,
) -> None:
    """Write a base model that `--base-model` takes: SmolLM2 with 135 million parameters, or a GGUF file's."""
    try:
        from ratchet.local.smollm2 import gguf_file, write_model  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as error:
        raise MissingExtra("real", "ratchet model") from error
    file = gguf_file() if source == "smollm2" else Path(source)
    if not file.is_file():
        raise Rejected(f"{source} is not a file: name a GGUF file, or `smollm2`")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise Rejected(f"{output} is not empty: name a new directory")
    write_model(output, file)
    done = f"{output} holds the model: `ratchet train ROLE --algorithm sft --base-model {output}`"
    print_answer({"directory": str(output), "source": str(file)}, as_json, done)
