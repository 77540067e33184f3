"""Where the stream of rewards ends."""

from __future__ import annotations

import nats.errors
from nats.js import errors as js_errors

from ratchet.bus.connection import Bus
from ratchet.contract import Reward
from ratchet.errors import BusUnavailable


async def last_reward(bus: Bus) -> int:
    """Sequence of the newest reward that is still in the stream, 0 when there is none."""
    stream = bus.contracts.topics[Reward.TOPIC].stream
    found = [0]
    for subject in bus.contracts.subjects(Reward.TOPIC):
        try:
            found.append((await bus.nc.jetstream().get_last_msg(stream, subject)).seq or 0)
        except js_errors.NotFoundError:
            continue
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"broker does not answer for {stream}: {error!r}") from error
    return max(found)
