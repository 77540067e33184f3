"""What cannot be asked of statistics is refused in words, before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.console_data import console

NOTHING: Any = None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"by": "colour"}, "'colour': group by one or two different of role, agent"),
        ({"by": "agent,agent"}, "one or two different"),
        ({"by": "agent,role,arm"}, "one or two different"),
        ({"since": "2026-11-21T00:00:00Z"}, "ends before it begins"),
        ({"until": "0001-01-01T00:00:00Z"}, "ends before it begins"),
        ({"since": "2026-01-01T00:00:00Z", "every": "hour"}, "take a wider bucket, or a shorter window"),
        ({"since": "1990-01-01T00:00:00Z"}, "longer than 200 weeks"),
        ({"since": "2026-11-20T00:00:00"}, "timezone"),
        ({"agnet": "first"}, "agnet"),
    ],
)
async def test_what_cannot_be_asked_is_refused_in_words(wrong: dict[str, str], words: str) -> None:
    async with console(NOTHING, now=datetime(2026, 11, 20, tzinfo=UTC)) as http:
        answer = await http.get("/v1/statistics", params=wrong)
    assert answer.status_code in {400, 422}
    assert words in answer.json()["error"]["message"]
