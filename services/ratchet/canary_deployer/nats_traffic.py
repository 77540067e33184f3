"""How many trajectories of a role have started lately: counted by the broker, not read."""

from __future__ import annotations

from datetime import datetime, timedelta

import nats.errors
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import Error as JetStreamError

from ratchet.bus.connection import Bus
from ratchet.contract import Start
from ratchet.contract.roles import role_subject
from ratchet.errors import BusUnavailable

WINDOW = timedelta(days=1)
INACTIVE_S = 5.0


class NatsTraffic:
    """The starts of the last day, or of the time since the first one that is kept."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stream = bus.contracts.topics[Start.TOPIC].stream

    async def starts(self, role: str, now: datetime) -> tuple[int, float]:
        """How many, and in how many seconds. Raises `BusUnavailable`."""
        jetstream, since = self._bus.nc.jetstream(), now - WINDOW
        subject = role_subject(Start.TOPIC, role)
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            deliver_policy=DeliverPolicy.BY_START_TIME,
            opt_start_time=since,
            filter_subject=subject,
            inactive_threshold=INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        try:
            counted = await jetstream.add_consumer(self._stream, config)
            if not counted.num_pending:
                return 0, WINDOW.total_seconds()
            first = await jetstream.get_msg(self._stream, 1, subject=subject, next=True)
        except (nats.errors.Error, JetStreamError, TimeoutError) as error:
            raise BusUnavailable(f"cannot count the starts of {role}: {error!r}") from error
        began = max(since, first.time) if first.time is not None else since
        return counted.num_pending, max(0.0, (now - began).total_seconds())
