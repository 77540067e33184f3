"""Every decision about a role that the stream still has, in order."""

from __future__ import annotations

import nats.errors
from nats.js import errors as js_errors

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import unseal
from ratchet.contract import ModelRollout
from ratchet.errors import BusUnavailable


class NatsDecisions:
    """Reads the stream of deployments message by message: an audit is rare, and decisions are few."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._stream = bus.contracts.topics[ModelRollout.TOPIC].stream

    async def of(self, role: str) -> list[ModelRollout]:
        """The decisions about one role. Raises `BusUnavailable`."""
        found: list[ModelRollout] = []
        jetstream, sequence = self._bus.nc.jetstream(), 1
        while True:
            try:
                message = await jetstream.get_msg(self._stream, sequence, subject=ModelRollout.TOPIC, next=True)
            except js_errors.NotFoundError:
                return found
            except (nats.errors.Error, TimeoutError) as error:
                raise BusUnavailable(f"broker does not answer for {self._stream}: {error!r}") from error
            sequence = (message.seq or sequence) + 1
            body = unseal(dict(message.headers or {}), message.data or b"")
            decision, _ = self._bus.contracts.read(ModelRollout.TOPIC, body)
            if isinstance(decision, ModelRollout) and decision.role == role:
                found.append(decision)
