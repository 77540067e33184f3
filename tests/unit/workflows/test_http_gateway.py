"""What an answer of the gateway, or of a tool, has cost, what is asked again, and how child trajectories end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.workflows.domain.asking import Asked, CallFailed, most_usd
from ratchet.workflows.http_gateway import ANSWER_BYTES, ENDS, HttpGateway, gateway_peer
from ratchet.workflows.http_tools import ask_tool
from ratchet.workflows.planners import RESPONSE_FORMAT
from tests.support.workflow_world import WorkflowWorld, llm

ASKED = Asked(task_type="generation", text="Write.", trajectory_id="t")


Answering = Callable[[httpx.Request], Awaitable[httpx.Response]]


def answering(answer: Answering) -> HttpGateway:
    peer = gateway_peer("http://gateway", None)
    return HttpGateway(AsyncApiClient(peer, httpx.MockTransport(answer)), pause_s=0.0)


def gateway(body: Any, status: int = 200) -> HttpGateway:
    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=msgspec.json.encode(body))

    return answering(answer)


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


USED = {"usage": {"prompt_tokens": 2, "completion_tokens": 3}}
AWAY = {"error": {"message": "not now", "code": "unavailable"}}
FAILURES = [
    ({"choices": [{"message": {"content": " "}}], **USED}, 200, True, 5.0, "writer answered nothing"),
    ({"choices": [{"message": {"content": None}}], **USED}, 200, True, 5.0, "writer answered nothing"),
    ({"choices": [], **USED}, 200, True, 5.0, "no chat completion"),
    ({"choices": [{"message": {"content": "x" * 300_000}}], **USED}, 200, False, 5.0, "more than 256 KiB"),
    (AWAY, 429, True, 0.0, "not now"),
    (AWAY, 500, True, None, "not now"),
    (AWAY, 503, True, None, "not now"),
    (AWAY, 404, False, 0.0, "not now"),
    ("x" * (ANSWER_BYTES + 1), 200, False, None, f"answers with more than {ANSWER_BYTES} bytes"),
]


@pytest.mark.parametrize(("body", "status", "again", "cost", "why"), FAILURES, ids=[str(at) for at in range(9)])
async def test_a_failed_call_has_a_cost_and_may_be_asked_again(
    body: Any, status: int, again: bool, cost: float | None, why: str
) -> None:
    with pytest.raises(CallFailed, match=why) as failed:
        await gateway(body, status).ask(llm(cost=1.0), ASKED)
    assert (failed.value.again, failed.value.cost_usd) == (again, cost)


async def test_a_call_without_an_answer_in_time_is_asked_again() -> None:
    async def hangs(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(CallFailed, match="does not answer") as failed:
        await answering(hangs).ask(llm(timeout_s=0.01), ASKED)
    assert (failed.value.again, failed.value.cost_usd) == (True, None)


def ending(*statuses: int) -> tuple[HttpGateway, list[httpx.Request]]:
    """A gateway that answers with these statuses, and what it was asked."""
    asked: list[httpx.Request] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(statuses[len(asked) - 1], json={})

    return answering(answer), asked


@pytest.mark.parametrize(
    ("statuses", "tries"), [((202,), 1), ((503, 202), 2), ((503, 500, 503, 202), ENDS), ((404, 202), 1)]
)
async def test_an_end_is_tried_again_where_that_may_help(statuses: tuple[int, ...], tries: int) -> None:
    there, asked = ending(*statuses)
    await there.end("t", WorkflowWorld().workflow(), success=True)
    assert len(asked) == tries


async def test_an_end_names_its_workflow_and_the_planner_s_arm() -> None:
    there, asked = ending(202)
    claim = PolicyClaim(role="planner", version=3, digest="", arm="canary", weight=0.1)
    workflow = WorkflowWorld().workflow(claim=claim, policy="planner@3", unrecorded=True)
    await there.end("t", workflow, success=False)
    assert asked[0].url.path == "/v1/trajectories/t/end"
    assert asked[0].headers["x-ratchet-record"] == "off"
    assert msgspec.json.decode(asked[0].content) == {
        "parent_trajectory_id": workflow.workflow_id,
        "outcome": {"status": "failure"},
        "labels": {"workflow_id": workflow.workflow_id, "planner": "planner@3", "arm": "canary"},
    }


@pytest.mark.parametrize("url", ["http://[abc", "http://a:xy/", "http://☃.example.", "http://"])
async def test_a_tool_that_has_no_url_fails_its_call_alone(url: str) -> None:
    with pytest.raises(CallFailed) as failed:
        await ask_tool(replace(llm(), model=None, url=url), ASKED)
    assert (failed.value.again, failed.value.cost_usd) == (False, 0.0)


def test_a_response_format_is_part_of_what_a_call_may_cost() -> None:
    planning = Asked(task_type="planning", text="Write.", trajectory_id="t", response_format=RESPONSE_FORMAT)
    more = len(msgspec.json.encode(RESPONSE_FORMAT))
    assert most_usd(llm(cost=1.0), planning) >= most_usd(llm(cost=1.0), ASKED) + more - 2
