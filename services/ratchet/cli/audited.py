"""The acts of commands that reach the stores without a service: they stand in the audit log of `cli`."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.bus.message import decode
from ratchet.cli.connections import addresses_of, caller_at, connected, reader_at
from ratchet.cli.endpoints import Endpoints, locate
from ratchet.cli.exit_codes import NoStack
from ratchet.cli.output import errors
from ratchet.core.errors import Rejected, Unavailable
from ratchet.core.service.files import PRIVATE

if TYPE_CHECKING:
    from ratchet.core.rules.access import Caller
    from ratchet.core.service.audit import AuditLog


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An act that no broker has taken yet."""

    act: str
    actor: str
    objects: list[str]


def record_read(endpoints: Endpoints, act: str, role: str | None = None, objects: Sequence[str] = ()) -> None:
    """Write what this command is about to read. Where the log cannot be written it goes on, and says so. Raises as
    `settings_of` does."""
    endpoints.require()
    caller = reader_at(endpoints, role)
    try:
        asyncio.run(recorded(endpoints, act, role, objects, caller))
    except Unavailable as error:
        errors.print(f"not in the audit log: {error}", markup=False)


def record_act(endpoints: Endpoints, act: str, objects: Sequence[str]) -> None:
    """Write what this command is about to change in the stores. Raises `Unavailable` where the log cannot be written:
    then it must change nothing."""
    asyncio.run(recorded(endpoints, act, None, objects, _caller_of(endpoints)))


def record_change(directory: Path, act: str, objects: Sequence[str] = ()) -> None:
    """Write what this command changes in the files of a stack. Where no broker takes it, it waits in a file there."""
    endpoints, user = locate(directory), user_name()
    try:
        endpoints.require()
        asyncio.run(recorded(endpoints, act, None, objects, _caller_of(endpoints)))
    except (Unavailable, NoStack):
        waiting = Waiting(act=act, actor=user, objects=[*objects, f"at {datetime.now(UTC).isoformat()}"])
        path = _waiting_in(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE), "ab") as file:
            file.write(msgspec.json.encode(waiting) + b"\n")


def _caller_of(endpoints: Endpoints) -> Caller | None:
    """Who runs the command; what needs no key is recorded all the same."""
    try:
        return caller_at(endpoints)
    except Rejected:
        return None


async def recorded(
    endpoints: Endpoints, act: str, role: str | None, objects: Sequence[str], caller: Caller | None
) -> None:
    """Write what this command does, and what waits to be. Raises `Unavailable` where the log cannot be written."""
    from ratchet.core.service.audit import Act, By  # noqa: PLC0415 - it needs the broker's library

    user = user_name()
    by = By(caller.actor(user), caller.key_id) if caller is not None else By(user)
    async with log_of(endpoints) as audit:
        await audit.record(Act(act, by, role, objects))


@asynccontextmanager
async def log_of(endpoints: Endpoints) -> AsyncGenerator[AuditLog]:
    """The audit log of commands, once it has what waited for a broker. Raises `Unavailable`."""
    from ratchet.core.service.audit import Act, By  # noqa: PLC0415 - as above
    from ratchet.core.stores.audit_store import audit_log_of  # noqa: PLC0415 - the object store's library

    settings, path = addresses_of(endpoints), _waiting_in(endpoints.directory)
    own = settings.model_copy(update={"data_dir": path.parent})
    async with connected(settings) as bus:
        audit = audit_log_of(own, bus, "cli")
        if path.exists():
            for line in path.read_bytes().splitlines():
                waiting = decode(line, Waiting)
                await audit.record(Act(waiting.act, By(waiting.actor), None, waiting.objects))
            path.unlink()
        yield audit
        await audit.sign()


def user_name() -> str:
    """Who runs this command, as the machine names it; a user without a name, as in containers, by the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # Windows looks in its environment alone
        return "unknown" if sys.platform == "win32" else f"uid {os.getuid()}"


def _waiting_in(directory: Path) -> Path:
    return directory / "data" / "cli" / "audit.waiting"
