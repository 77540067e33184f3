"""An agent: what a policy does to itself is its failure, what the gateway refuses otherwise is an error."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import openai
import pytest

from ratchet_helpdesk.agent import Agent
from ratchet_helpdesk.world import TRAIN, draw_tasks


def refusal(code: str) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": "no", "type": "invalid_request_error", "code": code}})


def babble() -> httpx.Response:
    message = {"role": "assistant", "content": "well, well"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return httpx.Response(
        200, json={"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    )


def an_agent(*answers: httpx.Response) -> tuple[Agent, list[Any]]:
    """An agent whose gateway gives these answers, and the body of each request."""
    left, asked = list(answers), list[Any]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return left.pop(0)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="none", http_client=http, max_retries=0)
    return Agent(client, "helpdesk"), asked


async def test_a_conversation_that_outgrows_the_policy_is_a_ticket_left_open() -> None:
    (task,) = draw_tasks(TRAIN, 1, seed=0)
    agent, asked = an_agent(babble(), refusal("context_length_exceeded"))
    verdict = await agent.play(task, str(uuid.uuid4()))
    assert (verdict.success, verdict.fault, verdict.model_calls) == (False, "no act", 1)
    first, second = [len(body["messages"]) for body in asked]
    assert first < second


async def test_an_agent_names_the_customer_of_its_ticket() -> None:
    (task,) = draw_tasks(TRAIN, 1, seed=0)
    agent, asked = an_agent(babble(), refusal("context_length_exceeded"))
    await agent.play(task, str(uuid.uuid4()))
    assert [body["user"] for body in asked] == [task.task_id] * 2


async def test_any_other_refusal_is_an_error_and_no_verdict() -> None:
    (task,) = draw_tasks(TRAIN, 1, seed=0)
    agent, _ = an_agent(refusal("model_not_found"))
    with pytest.raises(openai.BadRequestError):
        await agent.play(task, str(uuid.uuid4()))
