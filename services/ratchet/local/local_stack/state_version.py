"""`version.json`: which program has written a state last, so that an older one does not write into it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.resources import resource_dir
from ratchet.core.service.files import PUBLIC, write_whole

VERSION_FILE = "version.json"
FORMAT = 1
"""Of the state directory itself; tables have their migrations, streams and buckets the contract."""


class StateVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has brought a state to."""

    format: int
    program: str
    """The version of Ratchet."""
    migrations: list[str]
    """The scripts that its tables have seen."""


def own_version() -> StateVersion:
    """What this program brings a state to."""
    scripts = sorted(path.name for path in (resource_dir("deploy") / "clickhouse").glob("*.sql"))
    return StateVersion(format=FORMAT, program=version("ratchet-rl"), migrations=scripts)


def read_version(directory: Path) -> StateVersion | None:
    """The version of a state; None for one that has not been started, or was by a program that noted none.

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
    """Note that this program writes the state, before it does: it knows all that the state has. Raises `OSError`."""
    if read_version(directory) != own_version():
        text = msgspec.json.format(msgspec.json.encode(own_version()), indent=1)
        write_whole(directory / VERSION_FILE, text, mode=PUBLIC)


def require_readable(state: StateVersion | None, where: Path) -> None:
    """Raise `ConfigError` for a state that a newer program has written."""
    own = own_version()
    if state is None:
        return
    unknown = [name for name in state.migrations if name not in own.migrations]
    if unknown or state.format > own.format:
        what = f"migration {unknown[-1]}" if unknown else f"format {state.format}"
        raise ConfigError(
            f"the state in {where} was written by Ratchet {state.program} ({what}), which is newer than this"
            f" {own.program}: use that version, or `ratchet restore` a backup from before the upgrade"
        )


def upgrade_ahead(directory: Path) -> str | None:
    """What to know before a start that changes a state's tables for good; None where it changes nothing."""
    state, own = read_version(directory), own_version()
    if state is None:
        old = any((directory / "data" / "clickhouse" / "metadata").glob("*.sql"))  # a start has made tables
        return _notice(directory, "a version that is not noted", "its tables may change") if old else None
    new = [name for name in own.migrations if name not in state.migrations]
    if not new:
        return None
    return _notice(directory, f"Ratchet {state.program}", ", ".join(new))


def _notice(directory: Path, before: str, what: str) -> str:
    return (
        f"this start brings the state in {directory} from {before} to {own_version().program} ({what});"
        f" there is no way back but a backup: `ratchet backup` while the stack is stopped"
    )
