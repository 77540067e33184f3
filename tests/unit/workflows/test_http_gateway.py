"""What an answer of the gateway, or of a tool, has cost."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from ratchet.core.service.http_client import AsyncApiClient
from ratchet.workflows.domain.asking import Asked, CallFailed, most_usd
from ratchet.workflows.http_gateway import HttpGateway, gateway_peer
from ratchet.workflows.http_tools import ask_tool
from ratchet.workflows.planners import RESPONSE_FORMAT
from tests.support.workflow_world import llm

ASKED = Asked(task_type="generation", text="Write.", trajectory_id="t")


def gateway(body: Any, status: int = 200) -> HttpGateway:
    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=msgspec.json.encode(body))

    return HttpGateway(AsyncApiClient(gateway_peer("http://gateway", None), httpx.MockTransport(answer)))


def chat(usage: Any) -> Any:
    return {"choices": [{"message": {"content": "done"}}], **({"usage": usage} if usage else {})}


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (None, None),
        ({"prompt_tokens": 0, "completion_tokens": 3}, 3.0),
        ({"prompt_tokens": 2, "completion_tokens": 3}, 5.0),
    ],
)
async def test_an_answer_without_usage_has_no_known_cost(usage: Any, cost: float | None) -> None:
    answer = await gateway(chat(usage)).ask(llm(cost=1.0), ASKED)
    assert (answer.text, answer.cost_usd) == ("done", cost)


@pytest.mark.parametrize(("code", "cost"), [("content_filter", None), ("model_not_found", 0.0)])
async def test_a_filtered_answer_may_have_cost_its_most(code: str, cost: float | None) -> None:
    with pytest.raises(CallFailed) as failed:
        await gateway({"error": {"message": "no", "code": code}}, 400).ask(llm(cost=1.0), ASKED)
    assert (failed.value.again, failed.value.cost_usd) == (False, cost)


@pytest.mark.parametrize("url", ["http://[abc", "http://a:xy/", "http://☃.example.", "http://"])
async def test_a_tool_that_has_no_url_fails_its_call_alone(url: str) -> None:
    with pytest.raises(CallFailed) as failed:
        await ask_tool(replace(llm(), model=None, url=url), ASKED)
    assert (failed.value.again, failed.value.cost_usd) == (False, 0.0)


def test_a_response_format_is_part_of_what_a_call_may_cost() -> None:
    planning = Asked(task_type="planning", text="Write.", trajectory_id="t", response_format=RESPONSE_FORMAT)
    more = len(msgspec.json.encode(RESPONSE_FORMAT))
    assert most_usd(llm(cost=1.0), planning) >= most_usd(llm(cost=1.0), ASKED) + more - 2
