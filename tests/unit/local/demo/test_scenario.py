"""Waiting for what other processes do: a look that gets no answer is taken again."""

from __future__ import annotations

import pytest

from ratchet.core.errors import Unavailable
from ratchet.local.demo.scenario import DemoFailed, until


async def test_look_that_gets_no_answer_is_taken_again() -> None:
    looks = iter([Unavailable("the deployer does not answer"), "decided"])

    async def look() -> str:
        seen = next(looks)
        if isinstance(seen, Unavailable):
            raise seen
        return seen

    assert await until("v3 has a verdict", look, 60.0) == "decided"


async def test_service_that_stays_away_ends_the_wait_in_words() -> None:
    async def look() -> str:
        raise Unavailable("the deployer does not answer")

    with pytest.raises(DemoFailed, match=r"waited 0\.01 s in vain until v3 has a verdict"):
        await until("v3 has a verdict", look, 0.01)
