"""How a client connects to the broker: in the background, for as long as it takes, without noise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.contracts import Contracts
from ratchet.service.discovery import address
from ratchet.service.settings import SharedSettings


def broker_url(settings: SharedSettings) -> str:
    """The broker: as the settings say, else where the local stack runs, else the usual port."""
    told = "nats_url" in settings.model_fields_set
    return settings.nats_url if told else address("RATCHET_NATS_URL") or settings.nats_url


async def connect(settings: SharedSettings, name: str, contracts: Contracts, now: Callable[[], datetime]) -> Bus:
    """A bus, as soon as the broker can be reached; warns once that it is away."""
    patience = Patience(
        address=lambda: broker_url(settings), first_pause_s=0.25, longest_pause_s=5.0, reconnect_s=1.0, quiet=True
    )
    return await Bus.connect(settings.bus, name=name, contracts=contracts, now=now, patience=patience)
