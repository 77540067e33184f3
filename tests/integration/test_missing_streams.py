"""A service that starts before its streams and buckets exist says which it lacks and what makes them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import KEYS, Key
from ratchet.core.errors import BusUnavailable
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.settings import SharedSettings
from tests.support.messages import turn
from tests.support.servers import Broker

MAKER = "`ratchet up`, or the container `streams`, makes it"


async def test_what_is_missing_is_named_once_until_it_is_made(nats: Broker) -> None:
    bus = await Bus.connect(SharedSettings(nats_url=nats.url).bus, name="test", contracts=load_contracts())
    try:
        assert await bus.check() is None  # it was asked for nothing yet
        Bucket(bus, KEYS, Key)
        with capture_logs() as logs:
            reasons = {await bus.check() for _ in range(3)}
        assert reasons == {f"the broker has no bucket keys: {MAKER}"}
        assert [(line["event"], line["reason"]) for line in logs] == [("streams or buckets are missing", *reasons)]
        with pytest.raises(BusUnavailable):
            await bus.publish(turn())
        assert await bus.check() == f"the broker has no bucket keys, no stream RL_TURNS: {MAKER}"
        await bus.ensure_streams()
        assert await bus.check() is None
        await bus.publish(turn())
    finally:
        await bus.close()
