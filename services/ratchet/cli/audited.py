"""The acts of commands that reach the stores without a service: they stand in the audit log of `cli`."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Sequence

from ratchet.cli.connections import addresses_of, caller_at, connected, settings_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.output import errors
from ratchet.core.errors import Unavailable


def record_read(endpoints: Endpoints, act: str, role: str | None = None, objects: Sequence[str] = ()) -> None:
    """Write what this command is about to read. Where the log cannot be written it goes on, and says so. Raises as
    `settings_of` does."""
    settings_of(endpoints, role)  # refuses who may not read it
    try:
        asyncio.run(recorded(endpoints, act, role, objects))
    except Unavailable as error:
        errors.print(f"not in the audit log: {error}", markup=False)


async def recorded(endpoints: Endpoints, act: str, role: str | None = None, objects: Sequence[str] = ()) -> None:
    """Write what this command does. Raises `Unavailable` where the log cannot be written."""
    from ratchet.core.service.audit import Act, By, by_caller  # noqa: PLC0415 - the broker's library
    from ratchet.core.stores.audit_store import audit_log_of  # noqa: PLC0415 - the object store's

    settings, caller, user = addresses_of(endpoints), caller_at(endpoints), getpass.getuser()
    own = settings.model_copy(update={"data_dir": endpoints.directory / "data" / "cli"})
    async with connected(settings) as bus:
        audit = audit_log_of(own, bus, "cli")
        by = by_caller(caller, user) if caller is not None else By(user)
        await audit.record(Act(act, by, role, objects))
        await audit.sign()
