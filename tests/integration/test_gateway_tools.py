"""A policy whose chat template shows it no tools: calls that offer some get an answer that says so, in each API."""

from __future__ import annotations

from typing import Any

import msgspec
import openai
import pytest

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import eventually
from ratchet.core.contract import Turn
from ratchet.core.contract.state import PolicyVersion
from tests.support.fake_engine import TOOLS
from tests.support.gateway_scene import ROLE, Scene, ask, scene, version
from tests.support.running import http_client
from tests.support.servers import Broker

ASKED: list[Any] = [{"role": "user", "content": "where is K47?"}]
SCHEMA = TOOLS[0]["function"]["parameters"]
LINE = f"{version(1).name} takes no tools: its engine's chat template does not show them to it. Leave `tools` out"
OFFERS = {
    "/v1/chat/completions": {"messages": ASKED, "tools": TOOLS},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", "name": "look_up", "parameters": SCHEMA}]},
    "/v1/messages": {"messages": ASKED, "max_tokens": 9, "tools": [{"name": "look_up", "input_schema": SCHEMA}]},
}
ANSWERED: list[dict[str, Any]] = [
    {},
    {"tools": []},
    {"tools": TOOLS, "tool_choice": "none"},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look_up"}}},
]
"""The last one's call is made by a grammar."""


async def takes_no_tools(here: Scene) -> None:
    """The deployer has seen it, and the gateway has read that."""
    known = msgspec.structs.replace(version(1), takes_tools=False)
    await Bucket(here.bus, "policies", PolicyVersion).put(f"{ROLE}.1", known)

    async def refused() -> bool:
        try:
            await ask(here.client(), ASKED, tools=TOOLS)
        except openai.BadRequestError:
            return True
        return False

    await eventually(refused)


async def test_call_with_tools_for_a_policy_without_them_is_refused_and_recorded(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here, http_client(base_url=here.url) as http:
        await takes_no_tools(here)
        before = len(here.engine.asked)
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(here.client(), ASKED, tools=TOOLS, stream=True)
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
        for path, members in OFFERS.items():
            answer = await http.post(path, json={"model": ROLE, **members})
            assert (answer.status_code, answer.json()["error"]["message"][: len(LINE)]) == (400, LINE), path
        assert len(here.engine.asked) == before
        refused = [turn for turn in await here.published(Turn, before + 4) if (turn.error or "").startswith(LINE)]
        assert len(refused) >= 4
        assert {turn.engine.fault for turn in refused} == {None}


async def test_calls_that_need_no_template_for_tools_are_answered(nats: Broker, tmp_path: Any) -> None:
    async with scene(nats, tmp_path) as here:
        await takes_no_tools(here)
        for members in ANSWERED:
            answer = await ask(here.client(), ASKED, **members)
            assert answer.headers["x-ratchet-policy"] == version(1).name
