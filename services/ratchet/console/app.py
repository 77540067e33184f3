"""Composition root of the console.

Site ─┬─ pages: the bundle, for anybody
      └─ Authentication ─ http_api: sessions and what pages ask, from ClickHouse and the broker
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from ratchet.bus.connection import Bus
from ratchet.console.http_api import Subjects, console_api
from ratchet.console.pages import Pages, read_pages
from ratchet.console.settings import Settings
from ratchet.console.site import Site
from ratchet.service.authentication import Authentication
from ratchet.service.contracts import load_contracts
from ratchet.service.http import HttpServer
from ratchet.service.keys import known_keys
from ratchet.service.runtime import App
from ratchet.service.same_site import Sites
from ratchet.stores.warehouse import Warehouse

NAME = "console"
log = structlog.get_logger()


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """Connect and wire everything; disconnect at the end."""
    bus = await Bus.connect(settings.shared.bus, name=NAME, contracts=load_contracts())
    warehouse = await Warehouse.connect(settings.shared)
    try:
        yield assembled(settings, bus, warehouse)
    finally:
        await bus.close()
        await warehouse.close()


def assembled(settings: Settings, bus: Bus, warehouse: Warehouse) -> App:
    """The console on open connections."""

    async def connected() -> Bus:
        return bus

    keys = known_keys(settings.shared, NAME, connected)
    pages = Pages(read_pages())
    if pages.missing is not None:
        log.warning(pages.missing)
    shared = settings.shared
    api = Authentication(console_api(Subjects()), keys.caller_of)
    site = Site(pages, api, {}, shared.allowed_hosts)
    server = HttpServer(site, shared.http_host, settings.port, sites=Sites(shared.allowed_hosts))
    return App(
        NAME,
        [keys, server],
        checks={"bus": bus.check, "keys": keys.ready},
        notes={"warehouse": warehouse.check, "unreadable_keys": keys.check},
    )
