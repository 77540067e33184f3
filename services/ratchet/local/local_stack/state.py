"""`stack.json` and the lock: how commands find a running stack, and how a second one is refused."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.service.discovery import STATE_FILE
from ratchet.core.service.files import PRIVATE, lock_at, write_whole

LOCK_FILE = "lock"


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the stack. `pid` and `born` together name it for ever."""

    pid: int | None
    """None before it is first needed."""
    started_at: float
    """The kernel's start time of the process, seconds since the epoch: a clock that is set moves it."""
    url: str
    port: int
    health_port: int | None
    state: str
    restarts: int
    reason: str | None
    restarted: str | None = None
    """Why it was started again last."""
    born: str = ""
    """`orphans.birth` of the process; empty in the record of an older program."""


class StackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The running stack, as other processes see it."""

    pid: int
    started_at: float
    stack_id: str
    ready: bool
    """False until every member was ready once."""
    services: dict[str, MemberRecord]
    stop_s: float
    """Longest time that a stop can take: each member's deadline, one after the other."""
    env: dict[str, str]
    born: str = ""
    """`orphans.birth` of the supervisor."""


class AlreadyRunning(ConfigError):
    """Another supervisor holds the lock of this directory."""


def write_record(directory: Path, record: StackRecord) -> None:
    """Replace `stack.json` in one step; readable by this user only, for it holds the object store's key."""
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    write_whole(directory / STATE_FILE, text, mode=PRIVATE, durable=False)


def read_record(directory: Path) -> StackRecord | None:
    """The record, None when there is none. Raises `ConfigError` for one that cannot be read."""
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StackRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def remove_record(directory: Path) -> None:
    """Forget the stack."""
    (directory / STATE_FILE).unlink(missing_ok=True)


def already_running(directory: Path, record: StackRecord | None) -> AlreadyRunning:
    """The refusal of a second stack in `directory`."""
    who = f" (pid {record.pid})" if record else ""
    return AlreadyRunning(
        f"the stack in {directory} is already running{who}: see `ratchet status --dir {shlex.quote(str(directory))}`"
    )


def occupied(directory: Path) -> bool:
    """Whether a folder holds anything beside the lock. Raises `OSError`."""
    return directory.is_dir() and any(path.name != LOCK_FILE for path in directory.iterdir())


def aside_name(directory: Path, at: datetime) -> Path:
    """Where a restore puts the state that it replaces."""
    return directory.with_name(f"{directory.name}.before-{at:%Y%m%dT%H%M%S%f}")


def require_in_place(directory: Path) -> None:
    """Raise `ConfigError` where a state was set aside and none took its place: a restore was killed between the two."""
    directory = directory.resolve()
    aside = sorted(directory.parent.glob(f"{glob.escape(directory.name)}.before-*"))
    if aside and not occupied(directory):
        raise ConfigError(
            f"{directory} holds no state, but {aside[-1]} is one that `ratchet restore --replace` has set aside:"
            f" move it back, or elsewhere to begin without it"
        )


@contextmanager
def stack_lock(directory: Path) -> Generator[None]:
    """Hold the directory, which is made for it where there is none, and goes again where nothing came into it.

    The kernel lets go of it when this process dies. Raises `AlreadyRunning`.
    """
    try:
        directory.mkdir(parents=True)
        made = True
    except FileExistsError:
        made = False
    with ExitStack() as held:
        try:
            held.enter_context(lock_at(directory / LOCK_FILE))
        except BlockingIOError as error:
            record = read_record(directory)
            raise already_running(directory, record) from error
        try:
            yield
        finally:
            if made and directory.is_dir() and not occupied(directory):
                with suppress(OSError):  # what comes into it meanwhile keeps it
                    (directory / LOCK_FILE).unlink(missing_ok=True)
                    directory.rmdir()
