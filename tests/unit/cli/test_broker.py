"""What `ratchet broker add` says of a broker that does not serve the new user."""

from __future__ import annotations

import pytest
from nats.js.errors import NotFoundError

from ratchet.bus.nats_client import Refused
from ratchet.cli.broker import unanswered
from ratchet.core.errors import BusUnavailable

REFUSED = Refused("the broker's user late may not publish STREAMS.API.STREAM.INFO.RL_TRAJECTORIES")


@pytest.mark.parametrize(
    ("cause", "why"),
    [(REFUSED, f"no answer for RL_TRAJECTORIES: {REFUSED}"), (NotFoundError(code=404), None)],
    ids=["no permission", "no stream yet"],
)
async def test_reason_of_a_broker_that_serves_nothing_is_shown(cause: Exception, why: str | None) -> None:
    async def extent(stream: str) -> None:
        raise BusUnavailable(f"no answer for {stream}: {cause!r}") from cause

    assert await unanswered(extent) == why


async def test_broker_that_answers_has_no_reason() -> None:
    async def extent(_stream: str) -> None:
        pass

    assert await unanswered(extent) is None
