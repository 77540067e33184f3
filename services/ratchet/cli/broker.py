"""The broker for one command: a connection with a deadline, where a service would wait for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import structlog

from ratchet.kernel.bus import Bus
from ratchet.kernel.contracts import Contracts
from ratchet.kernel.errors import BusUnavailable
from ratchet.kernel.settings import KernelSettings
from ratchet.kernel.urls import shown

CONNECT_S = 4.0
"""A broker that has not answered by then does not run."""


@asynccontextmanager
async def connected(settings: KernelSettings) -> AsyncGenerator[Bus]:
    """A bus. Raises `BusUnavailable`."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await Bus.connect(settings, name="cli", contracts=Contracts.load())
    except TimeoutError as error:
        raise BusUnavailable(f"the broker does not answer at {shown(settings.nats_url)}") from error
    try:
        yield bus
    finally:
        await bus.close()
