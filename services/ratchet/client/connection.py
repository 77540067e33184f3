"""The client's connection to the broker: made in the background, tried for as long as it takes, without noise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

import nats.errors
import structlog

from ratchet.bus.connection import Bus, Connection
from ratchet.bus.contracts import Contracts
from ratchet.bus.urls import shown
from ratchet.service.discovery import address
from ratchet.service.settings import SharedSettings

log = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
RECONNECT_S = 1


def broker_url(settings: SharedSettings) -> str:
    """The broker: as the settings say, else where the local stack runs, else the usual port."""
    told = "nats_url" in settings.model_fields_set
    return settings.nats_url if told else address("RATCHET_NATS_URL") or settings.nats_url


async def connect(settings: SharedSettings, name: str, contracts: Contracts, now: Callable[[], datetime]) -> Bus:
    """A bus, as soon as the broker can be reached; says once that it is away."""
    bus = Bus(Connection(), name=name, contracts=contracts, replicas=settings.replicas, now=now)
    pause_s = FIRST_PAUSE_S
    while True:
        url = broker_url(settings)
        try:
            await bus.reach(settings.bus, url, reconnect_time_wait=RECONNECT_S, error_cb=_note)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            if pause_s == FIRST_PAUSE_S:
                log.warning("broker away, recording to the spool", url=shown(url), reason=repr(error))
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        else:
            return bus


async def _note(error: Exception) -> None:
    log.debug("broker connection", error=repr(error))
