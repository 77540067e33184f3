"""The broker for one command: a connection with a deadline, where a service would wait for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog

from ratchet.bus.connection import Bus
from ratchet.bus.urls import shown
from ratchet.errors import BusUnavailable
from ratchet.service.contracts import load_contracts
from ratchet.service.settings import SharedSettings

CONNECT_S = 4.0
"""A broker that has not answered by then does not run."""


@asynccontextmanager
async def connected(settings: SharedSettings) -> AsyncGenerator[Bus]:
    """A bus. Raises `BusUnavailable`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await Bus.connect(settings.bus, name="cli", contracts=load_contracts())
    except TimeoutError as error:
        raise BusUnavailable(f"the broker does not answer at {shown(settings.nats_url)}") from error
    try:
        yield bus
    finally:
        await bus.close()
