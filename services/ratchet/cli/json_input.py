"""Reads JSON that somebody hands to a command: whatever is wrong with it becomes one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ratchet.errors import NotFound, Rejected

Json = Any
"""A decoded document."""


def json_in(text: bytes, named: str) -> Json:
    """The document in `text`. Raises `Rejected`; a document that nests too deeply to be read is no JSON for us."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Rejected(f"{named} is not JSON: {error}") from error


def json_file(path: Path) -> Json:
    """The document in a file. Raises `NotFound` or `Rejected`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}") from error
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error
    return json_in(text, str(path))
