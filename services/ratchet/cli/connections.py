"""The servers, for one command, which waits less long for them than a service does.

A server's library is imported with the first connection to it: `--help` and Tab do not pay for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from ratchet.cli.api import get
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.exit_codes import NoStack
from ratchet.core.contract.http.console import SessionOut
from ratchet.core.errors import BusUnavailable, Forbidden, NotFound, NotPermitted, Unavailable
from ratchet.core.rules.access import ALL_ROLES, Caller, KeyScope, RoleSet

if TYPE_CHECKING:
    from nats.js.api import RawStreamMsg

    from ratchet.bus.connection import Bus
    from ratchet.bus.ordered_reader import OrderedReader
    from ratchet.core.contract.http.console import AlertsOut
    from ratchet.core.rules.alert_book import AlertBook
    from ratchet.core.service.settings import SharedSettings
    from ratchet.core.stores.objects import Objects
    from ratchet.core.stores.warehouse import Warehouse

T = TypeVar("T")
PATIENCE = {"RATCHET_CLICKHOUSE_TIMEOUT_S": "10"}
"""A person waits less long for a server that hangs than a service does; the environment overrides it."""
CONNECT_S = 4.0
"""A broker that has not answered by then does not run."""


def addresses_of(endpoints: Endpoints) -> SharedSettings:
    """The addresses of the servers. Raises `NoStack`."""
    from ratchet.local.local_stack.plan import shared_of

    endpoints.require()
    return shared_of(PATIENCE | dict(endpoints.env))


def settings_of(endpoints: Endpoints, role: str | None = None) -> SharedSettings:
    """The same, for who may read what is stored of a role, or of all. Raises `NoStack`, and `Rejected` without a key
    that has the scope `view` for it, where keys are asked for.

    It keeps people to their key, and is no lock: who has the stores' own credentials reads them with any program, and
    while the coordinator is away nothing knows the key.
    """
    settings = addresses_of(endpoints)
    reader_at(endpoints, role)
    return settings


def reader_at(endpoints: Endpoints, role: str | None) -> Caller | None:
    """Who reads what is stored of a role, or of all; None while nothing knows the key. Raises as `settings_of`."""
    caller = caller_at(endpoints)
    if caller is not None:
        caller.require(KeyScope.VIEW, role)
        if role is None and not caller.roles(KeyScope.VIEW).is_every:
            lacks = "is for some roles, and this reads every role: name one with --role, where the command has that"
            raise Forbidden(f"the key {caller.key_id} {lacks}")
    return caller


def roles_at(endpoints: Endpoints, role: str | None = None) -> RoleSet:
    """The roles of which the key may read what is stored; all of them while nothing knows the key. Raises `Rejected`
    for a key that may read nothing, or nothing of the `role`."""
    caller = caller_at(endpoints)
    if caller is None:
        return ALL_ROLES
    caller.require(KeyScope.VIEW, role)
    return caller.roles(KeyScope.VIEW)


def caller_at(endpoints: Endpoints) -> Caller | None:
    """Who runs the command, by its key; None while nothing knows the key. Raises `Rejected` for a wrong one."""
    try:
        session = get(endpoints, "coordinator", "/v1/session", SessionOut, timeout_s=CONNECT_S)
    except (Unavailable, NoStack, NotFound):
        return None
    return Caller(session.key_id, session.name, frozenset(session.scopes))


@asynccontextmanager
async def connected(settings: SharedSettings) -> AsyncGenerator[Bus]:
    """A bus. Raises `BusUnavailable`, also for errors of the broker inside the block."""
    import structlog
    from nats.errors import Error as NatsError

    from ratchet.bus.connection import Bus, Patience
    from ratchet.core.rules.redaction import rules_digest
    from ratchet.core.service.contracts import load_contracts
    from ratchet.core.stores.message_bodies import StoredBodies

    logging.getLogger("asyncio").setLevel(logging.ERROR)  # nats-py upgrades to TLS in a way that it warns of
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    patience = Patience(deadline_s=CONNECT_S)
    contracts, rules = load_contracts(), rules_digest()
    bus = await Bus.connect(settings.bus, name="cli", contracts=contracts, rules=rules, patience=patience)
    bus.bodies = StoredBodies(settings)
    try:
        yield bus
    except (TimeoutError, NotPermitted):
        raise
    except NatsError as error:
        raise BusUnavailable(str(error)) from error
    finally:
        await bus.close()


async def alerts_shown(settings: SharedSettings) -> AlertsOut:
    """The alerts that hold, and what was sent to whom. Raises `BusUnavailable`."""
    from ratchet.bus.kv import Bucket
    from ratchet.core.contract.notifications import NOTIFICATIONS, Receiver
    from ratchet.core.rules.alert_book import RECENTLY
    from ratchet.core.rules.notifications import alerts_out
    from ratchet.core.service.alerts import held_alerts

    async with connected(settings) as bus:
        now = bus.now()
        held = await held_alerts(bus, now - RECENTLY)
        receivers = await Bucket(bus, NOTIFICATIONS, Receiver).items()
        return alerts_out(held, [entry.value for entry in receivers.values()], now)


async def alerts_since(settings: SharedSettings, since: datetime) -> AlertBook:
    """The alerts of all services since then. Raises `BusUnavailable`."""
    from ratchet.core.service.alerts import read_alerts

    async with connected(settings) as bus:
        return await read_alerts(bus, since)


def reader(bus: Bus, stream: str, subjects: Sequence[str] = (), *, start: int | datetime) -> OrderedReader:
    """Reads the subjects of a stream, or all of them, in order from `start` on."""
    from ratchet.bus.ordered_reader import OrderedReader

    return OrderedReader(bus, stream, subjects, start=start)


async def message_of(bus: Bus, stream: str, number: int) -> RawStreamMsg | None:
    """The message of that number; None if the stream has none, also for numbers below 1."""
    from nats.js.errors import BadRequestError, NotFoundError

    try:
        return await bus.nc.jetstream().get_msg(stream, number)
    except (BadRequestError, NotFoundError):
        return None


@asynccontextmanager
async def warehouse_of(settings: SharedSettings) -> AsyncGenerator[Warehouse]:
    """The warehouse. Raises `WarehouseUnavailable`."""
    from ratchet.core.stores.warehouse import Warehouse

    warehouse = await Warehouse.connect(settings)
    try:
        yield warehouse
    finally:
        await warehouse.close()


def ask_warehouse(endpoints: Endpoints, question: Callable[[Warehouse], Awaitable[T]], role: str | None = None) -> T:
    """The warehouse's answer, of a role or of all. Raises `WarehouseUnavailable`, and as `settings_of` does."""
    return asyncio.run(_answer(settings_of(endpoints, role), question))


def ask_of_roles(endpoints: Endpoints, question: Callable[[Warehouse, RoleSet], Awaitable[T]]) -> T:
    """The answer of what is stored of the key's roles, which the question keeps to. Raises `WarehouseUnavailable`, and
    as `roles_at` does."""
    roles = roles_at(endpoints)
    return asyncio.run(_answer(addresses_of(endpoints), lambda warehouse: question(warehouse, roles)))


async def _answer(settings: SharedSettings, question: Callable[[Warehouse], Awaitable[T]]) -> T:
    async with warehouse_of(settings) as warehouse:
        return await question(warehouse)


def objects_of(endpoints: Endpoints, role: str | None = None) -> Objects:
    """The object store, for what it has of a role or of all. Raises as `settings_of` does."""
    from ratchet.core.stores.objects import Objects

    return Objects(settings_of(endpoints, role))


def objects_of_roles(endpoints: Endpoints) -> tuple[Objects, RoleSet]:
    """The object store, and the key's roles, to whose part of it a command keeps. Raises as `roles_at` does."""
    from ratchet.core.stores.objects import Objects

    roles = roles_at(endpoints)
    return Objects(addresses_of(endpoints)), roles
