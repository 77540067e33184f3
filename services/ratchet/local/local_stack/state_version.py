"""`version.json`: which program has written a state last, so that one of another schema does not write into it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.service.files import PUBLIC, write_whole
from ratchet.core.stores.schema import schema_digest

VERSION_FILE = "version.json"
FORMAT = 1
"""Of the state directory itself; tables have their schema, streams and buckets the contract."""


class StateVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has brought a state to."""

    format: int
    program: str
    """The version of Ratchet."""
    schema: str = ""
    """The digest of its tables' schema."""


def own_version() -> StateVersion:
    """What this program brings a state to."""
    return StateVersion(format=FORMAT, program=version("ratchet-rl"), schema=schema_digest())


def read_version(directory: Path) -> StateVersion | None:
    """The version of a state; None for one that has not been started.

    Raises `ConfigError`.
    """
    path = directory / VERSION_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StateVersion)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def write_version(directory: Path) -> None:
    """Note that this program writes the state, before it does. Raises `OSError`."""
    if read_version(directory) != own_version():
        text = msgspec.json.format(msgspec.json.encode(own_version()), indent=1)
        write_whole(directory / VERSION_FILE, text, mode=PUBLIC)


def require_readable(state: StateVersion | None, where: Path) -> None:
    """Raise `ConfigError` for a state that a program of another schema has written."""
    own = own_version()
    if state is not None and (state.format, state.schema) != (own.format, own.schema):
        raise ConfigError(
            f"the state in {where} was written by another version of Ratchet ({state.program}, schema"
            f" {state.schema or 'unknown'}; this is {own.program}, schema {own.schema}): use that version, or start"
            " with another --dir"
        )
