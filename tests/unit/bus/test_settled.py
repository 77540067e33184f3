"""Whether a consumer has settled everything, on a broker whose copies of a stream are behind for a moment."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ratchet.bus.pull_consumer import ConsumerState, unsettled_since
from ratchet.core.errors import BusUnavailable

AT = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
NONE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}
READ = msgspec.convert({"ts": AT, "num_pending": 0, "delivered": {"stream_seq": 4}}, ConsumerState)


@dataclass
class Answer:
    data: bytes
    headers: dict[str, str]


@dataclass
class ThreeServers:
    """Only the leader of a stream has its newest message."""

    leader: dict[str, Any]
    api: str = "$JS.API"

    async def request(self, subject: str, *_: object, **__: object) -> Answer:
        if ".DIRECT.GET." in subject:
            return Answer(b"", {"Status": "404"})
        return Answer(msgspec.json.encode(self.leader), {})


async def since(leader: dict[str, Any]) -> datetime | None:
    servers: Any = ThreeServers(leader)
    return await unsettled_since(servers, "S", READ)


async def test_message_that_a_copy_lacks_is_not_settled() -> None:
    assert await since({"message": {"subject": "s", "seq": 5, "data": "", "time": AT}}) == AT


async def test_a_stream_without_more_is_settled() -> None:
    assert await since(NONE) is None


async def test_a_stream_that_does_not_answer_settles_nothing() -> None:
    with pytest.raises(BusUnavailable, match="stream not found"):
        await since({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}})
