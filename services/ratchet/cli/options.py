"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Directory = Annotated[
    Path, typer.Option("--dir", help="State directory of the stack.", envvar="RATCHET_DIR", show_default=True)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table for people.")]

DEFAULT_DIRECTORY = Path(".ratchet")
