"""Responses that the gateway keeps: found by their owner alone, and no answer fails because one cannot be kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.core.errors import NotFound
from ratchet.core.rules.access import ANYONE
from ratchet.core.service.asgi import Request, Response
from ratchet.dialects.requests import read_fields
from ratchet.dialects.responses.answers import from_chat
from ratchet.dialects.responses.dialect import RESPONSES, asked_of, read_responses
from ratchet.dialects.responses.state import ResponseState
from ratchet.gateway.continuing import Continuing
from ratchet.gateway.kv_responses import Responses
from tests.support.gateway_alone import ANSWER, Alone, alone

HUGE = 99999999999999999999


def asked(text: str = "Hi.", **members: Any) -> bytes:
    return msgspec.json.encode({"model": "support", "input": text, **members})


async def answered(here: Alone, body: bytes) -> dict[str, Any]:
    request = Request("POST", "/v1/responses", {}, body, caller=ANYONE)
    answer = await here.completions.complete(RESPONSES, request, None)
    assert isinstance(answer, Response)
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body)


async def test_a_response_with_integers_of_any_size_is_answered_and_continued(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"count": {"type": "integer", "maximum": HUGE}}}
    tools = [{"type": "function", "name": "count", "parameters": schema}]
    async with alone(tmp_path) as here:
        here.server.may_answer.set()
        first = await answered(here, asked(tools=tools))
        assert first["tools"][0]["parameters"] == schema
        request = Request("GET", f"/v1/responses/{first['id']}", {}, b"", caller=ANYONE)
        shown = await here.handlers.get_response(first["id"], request, None)
        assert msgspec.json.decode(shown.body) == first
        await answered(here, asked("Again.", previous_response_id=first["id"]))


class Faulty(Responses):
    """Keeps nothing, and fails."""

    tried = 0

    async def put_state(self, state: ResponseState) -> bool:
        self.tried += 1
        raise RuntimeError("a fault in keeping")


async def test_a_fault_in_keeping_fails_no_answer() -> None:
    call = read_responses(read_fields(asked()))
    response = from_chat(asked_of(call).body, ANSWER, response_id="resp_1", created_at=0)
    faulty = Faulty(lambda: None)
    for given in (response, msgspec.json.encode(response)):
        await Continuing(faulty).keep(call, given, "team")
    assert faulty.tried == 2


async def test_a_response_exists_for_its_owner_alone() -> None:
    continuing = Continuing(Responses(lambda: None))
    call = read_responses(read_fields(asked()))
    await continuing.keep(call, from_chat(asked_of(call).body, ANSWER, response_id="resp_1", created_at=0), "team")
    follow_up = read_responses(read_fields(asked(previous_response_id="resp_1")))
    for act in (continuing.kept, continuing.forget):
        with pytest.raises(NotFound):
            await act("resp_1", "others")
    assert isinstance(asked_of(await continuing.opened(follow_up, "others")).obstacle, NotFound)
    assert asked_of(await continuing.opened(follow_up, "team")).obstacle is None
    assert (await continuing.kept("resp_1", "team")).shown()["id"] == "resp_1"
    await continuing.close()
