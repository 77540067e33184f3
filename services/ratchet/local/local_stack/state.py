"""The small files of a stack's directory: lock, `stack.json`, secrets, ports, and which program wrote its state."""

from __future__ import annotations

import glob
import secrets
import shlex
import stat
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import msgspec

from ratchet.core.errors import ConfigError
from ratchet.core.service.discovery import STATE_FILE
from ratchet.core.service.files import PRIVATE, PUBLIC, lock_at, write_whole
from ratchet.core.stores.schema import schema_digest, upgrade_statements

LOCK_FILE, SECRETS_FILE, PORTS_FILE, VERSION_FILE = "lock", "secrets.json", "ports.json", "version.json"
SECRET_BYTES = 24
"""Of randomness in each secret, written in letters that urls and SQL need not quote."""
FORMAT = 2
"""Of the state directory itself; tables have their schema, streams and buckets the contract."""

T = TypeVar("T")


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
    born: str
    """`orphans.birth` of the process."""


class StackRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The running stack, as other processes see it."""

    pid: int
    stack_id: str
    ready: bool
    """False until every member was ready once."""
    services: dict[str, MemberRecord]
    stop_s: float
    """Longest time that a stop can take: each member's deadline, one after the other."""
    env: dict[str, str]
    born: str
    """`orphans.birth` of the supervisor."""


class AlreadyRunning(ConfigError):
    """Another supervisor holds the lock of this directory."""


class StackSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """Random, made at the stack's first start. Who knows them may read and change everything that it stores."""

    clickhouse_password: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    s3_secret_key: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    service_key: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    engine_key: str = msgspec.field(default_factory=lambda: secrets.token_urlsafe(SECRET_BYTES))
    """Of `engine_local`; one of each start, where the stack is older than this member."""


class StateVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has brought a state to, so that one of another schema does not write into it."""

    format: int
    program: str
    """The version of Ratchet."""
    schema: str = ""
    """The digest of its tables' schema."""


def _read(path: Path, kind: type[T]) -> T | None:
    """What a file holds, None where there is none. Raises `ConfigError` for one that cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _write(path: Path, content: object, mode: int, *, durable: bool = True) -> None:
    write_whole(path, msgspec.json.format(msgspec.json.encode(content), indent=1), mode=mode, durable=durable)


def read_secrets(directory: Path) -> StackSecrets:
    """The stack's secrets; fresh ones, not written yet, where it has none. Raises `ConfigError`."""
    return _read(directory / SECRETS_FILE, StackSecrets) or StackSecrets()


def keep_secrets(directory: Path) -> StackSecrets:
    """The stack's secrets, written down (readable by this user only) when they are fresh. Raises `ConfigError`."""
    known = read_secrets(directory)
    if not (directory / SECRETS_FILE).exists():
        _write(directory / SECRETS_FILE, known, PRIVATE)
    return known


def read_ports(directory: Path) -> dict[str, int]:
    """The free ports that the last start with `--free-ports` has drawn, by name; empty where none can be read."""
    with suppress(ConfigError):
        return _read(directory / PORTS_FILE, dict[str, int]) or {}
    return {}


def keep_ports(directory: Path, ports: Mapping[str, int]) -> None:
    """Remember ports for the next start, beside those of members that this start leaves out, as far as it has not given
    them to others. Raises `OSError`.
    """
    others = {name: port for name, port in read_ports(directory).items() if port not in ports.values()}
    _write(directory / PORTS_FILE, {**others, **ports}, PUBLIC)


def own_version() -> StateVersion:
    """What this program brings a state to."""
    return StateVersion(format=FORMAT, program=version("ratchet-rl"), schema=schema_digest())


def read_version(directory: Path) -> StateVersion | None:
    """The version of a state; None for one that has not been started. Raises `ConfigError`."""
    try:
        return _read(directory / VERSION_FILE, StateVersion)
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise
        advice = f"put it back from a backup, or delete it if Ratchet {version('ratchet-rl')} was the last to run there"
        raise ConfigError(f"{error}: {advice}") from error


def write_version(directory: Path) -> None:
    """Note that this program writes the state, before it does. Raises `OSError`."""
    if read_version(directory) != own_version():
        _write(directory / VERSION_FILE, own_version(), PUBLIC)


def require_readable(state: StateVersion | None, where: Path) -> None:
    """Raise `ConfigError` for a state of another format, and of a schema that no step leads from to this one."""
    own = own_version()
    if state is not None and state.format != own.format:
        age = "newer" if state.format > own.format else "older"
        raise ConfigError(
            f"the state in {where} has format {state.format}, {age} than format {own.format}, which Ratchet"
            f" {own.program} reads: use Ratchet {state.program}, or start with another --dir"
        )
    if state is not None and upgrade_statements([state.schema]) is None:
        raise ConfigError(
            f"the state in {where} was written by another version of Ratchet ({state.program}, schema"
            f" {state.schema or 'unknown'}; this is {own.program}, schema {own.schema}), and"
            " deploy/clickhouse/upgrades has no step from there: use that version, or start with another --dir"
        )


def write_record(directory: Path, record: StackRecord) -> None:
    """Replace `stack.json` in one step; readable by this user only, for it holds the object store's key."""
    _write(directory / STATE_FILE, record, PRIVATE, durable=False)


def read_record(directory: Path) -> StackRecord | None:
    """The record, None when there is none. Raises `ConfigError` for one that cannot be read."""
    return _read(directory / STATE_FILE, StackRecord)


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

    Conversations lie in it, so it becomes readable by its owner alone. The kernel lets go of it when this process dies.
    Raises `AlreadyRunning`.
    """
    try:
        directory.mkdir(mode=0o700, parents=True)
        made = True
    except FileExistsError:
        made = False
    with ExitStack() as held:
        try:
            held.enter_context(lock_at(directory / LOCK_FILE))
        except BlockingIOError as error:
            raise already_running(directory, read_record(directory)) from error
        # Take the rights of others away, where the file system knows rights and the directory is ours.
        mode = directory.stat().st_mode
        if mode & 0o077:
            with suppress(PermissionError):
                directory.chmod(stat.S_IMODE(mode) & ~0o077)
        try:
            yield
        finally:
            if made and directory.is_dir() and not occupied(directory):
                with suppress(OSError):  # what comes into it meanwhile keeps it
                    (directory / LOCK_FILE).unlink(missing_ok=True)
                    directory.rmdir()
