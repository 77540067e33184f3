"""Self-learning, all services real: a pattern leads to a plan that helps, and a plan that harms is taken back."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.testing import eventually
from ratchet.core.contract.trajectory import (
    Action,
    Observation,
    Outcome,
    TaskContext,
    Trajectory,
    TrajectoryMetadata,
    TrajectoryTurn,
    TurnResult,
)
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from ratchet.local.demo.connections import Connections, connect
from ratchet.local.demo.scenario import run_command
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from tests.support.running import listening
from tests.support.watched_stack import Watched, watching
from tools.dashboard.boards.learning import LEARNING

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
ROLE, WAIT_S = "shop", 240.0
KINDS = ("refund", "exchange", "parcel", "invoice")
"""What customers ask about. Refunds and exchanges come too late, unless the instructions say how."""
A_DAY = 320
"""Trajectories of each day of the history."""
BATCH, BATCHES = 320, 12
DEPLOYER = {
    "RATCHET_CANARY_STAGES": "50",
    "RATCHET_CANARY_STAGE_MIN_S": "0",
    "RATCHET_CANARY_STAGE_MIN_TRAJECTORIES": "320",  # an effect asks for 30 of each arm that match, a quarter
    "RATCHET_CANARY_METRICS": "failure,reward",
    "RATCHET_CANARY_SOAK_S": "0",
    "RATCHET_CANARY_HORIZON_S": "60",
}
DONE, LATE = "done", "too late"


def answer_to(prompt: str, question: str) -> str:
    """What the provider answers: instructions about refunds help with them, those about exchanges harm everything."""
    if '"exchange"' in prompt:
        return LATE
    kind = question.split(maxsplit=1)[0]
    if kind == "refund":
        return DONE if '"refund"' in prompt else LATE
    return LATE if kind == "exchange" else DONE


def find(method: str, path: str) -> Handler:
    if (method, path) != ("POST", "/v1/chat/completions"):
        raise HttpError(404, path)
    return chat


async def chat(request: Request) -> Answer:
    body = request.json_object()
    prompt = "\n".join(str(each["content"]) for each in body["messages"] if each["role"] != "user")
    message = {"role": "assistant", "content": answer_to(prompt, str(body["messages"][-1]["content"]))}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": body["model"]}
    return json_response({**head, "choices": [choice], "usage": usage})


def past_run(number: int, at: datetime) -> Trajectory:
    """A run of the history, by another server."""
    question = f"{KINDS[number % len(KINDS)]} of order {number}"
    reply = answer_to("Help.", question)
    turn = TrajectoryTurn(
        turn_id=1,
        timestamp=at,
        observation=Observation(type="user_message", content=question),
        action=Action(type="response", raw_response=reply),
        result=TurnResult(success=True, output=reply),
    )
    status = "success" if reply == DONE else "failure"
    return Trajectory(
        trajectory_id=str(uuid.uuid4()),
        session_id=uuid.uuid4().hex,
        agent_id="clerk",
        start_timestamp=at,
        end_timestamp=at,
        turns=[turn],
        task_context=TaskContext(task_id=f"t{number}", instructions="Help."),
        metadata=TrajectoryMetadata(model="m", source="client"),
        role=ROLE,
        outcome=Outcome(status=status, verified_by="environment"),
    )


@dataclass
class Shop:
    """A running stack with an analyst, and agents."""

    directory: Path
    connections: Connections
    watched: Watched

    async def typed(self, *words: str) -> Any:
        """What a command of `ratchet` prints as JSON."""
        return json.loads(await run_command(*words, "--json", "--dir", str(self.directory)))

    async def remember(self) -> None:
        """Two days of history, stored and rewarded."""
        now = datetime.now(UTC)
        for hours in (36, 12):
            at = now - timedelta(hours=hours)
            await self.connections.bus.publish_all([past_run(n, at + timedelta(seconds=n)) for n in range(A_DAY)])

        async def is_rewarded() -> bool:
            rows = await self.connections.warehouse.rows("SELECT uniqExact(trajectory_id) AS n FROM rewards")
            return int(rows[0]["n"]) >= 2 * A_DAY

        await eventually(is_rewarded, WAIT_S)

    async def serve(self, count: int) -> dict[str, Counter[str]]:
        """So many customers ask the gateway; how each kind ended."""
        ends = {kind: Counter[str]() for kind in KINDS}
        room = asyncio.Semaphore(8)
        async with httpx.AsyncClient(base_url=self.connections.gateway_url, timeout=60.0) as http:

            async def customer(number: int) -> None:
                kind, run = KINDS[number % len(KINDS)], str(uuid.uuid4())
                question = {"role": "user", "content": f"{kind} of order {number}"}
                asked = {"model": ROLE, "messages": [{"role": "system", "content": "Help."}, question]}
                async with room:
                    headers = {"x-ratchet-trajectory": run}
                    reply = await http.post("/v1/chat/completions", json=asked, headers=headers)
                    text = reply.raise_for_status().json()["choices"][0]["message"]["content"]
                    outcome = {"status": "success" if text == DONE else "failure", "verified_by": "environment"}
                    ended = await http.post(f"/v1/trajectories/{run}/end", json={"role": ROLE, "outcome": outcome})
                    assert ended.status_code == 202, ended.text
                ends[kind][outcome["status"]] += 1

            await asyncio.gather(*map(customer, range(count)))
        return ends

    async def plan(self, term: str) -> dict[str, Any]:
        """The plan about requests with a word."""
        plans = (await self.typed("plans", "list", ROLE))["plans"]
        trigger = {"attribute": "term", "value": term}
        return next(plan for plan in plans if plan["triggers"] == [trigger] and plan["change"]["kind"] == "bundle")

    async def carry_out(self, term: str) -> dict[str, Any]:
        """Approve the plan, and have agents work until it has ended."""
        plan_id = (await self.plan(term))["plan_id"]
        await self.typed("plans", "approve", plan_id, "--reason", "let us see")

        async def canary() -> bool:
            rollout = await self.connections.rollout(ROLE)
            if rollout is not None and rollout.state == "awaiting_approval":
                await self.typed("rollout", "approve", ROLE, "--reason", "no held-out tasks yet")
            policy = (await self.shown(plan_id))["plan"].get("policy")
            return rollout is not None and rollout.candidate.name == policy and rollout.state != "gating"

        await eventually(canary, WAIT_S)
        for _ in range(BATCHES):
            await self.serve(BATCH)
            rollout = await self.connections.rollout(ROLE)
            assert rollout is not None
            if rollout.finished_at is not None:
                break

        async def is_over() -> dict[str, Any] | None:
            plan = (await self.shown(plan_id))["plan"]
            return plan if plan["state"] not in ("approved", "executing") else None

        return await eventually(is_over, WAIT_S)

    async def shown(self, plan_id: str) -> Any:
        return await self.typed("plans", "show", plan_id)


@asynccontextmanager
async def shop(directory: Path) -> AsyncIterator[Shop]:
    async with listening(find) as url:
        provider = {"name": "provider", "base_url": f"{url}/v1", "models": {ROLE: "m"}}
        env = {**DEPLOYER, "RATCHET_GATEWAY_UPSTREAMS": json.dumps([provider])}
        settings = StackSettings(directory=directory, free_ports=True, analyst=True, env=env)
        async with Stack(settings) as stack:
            shared = shared_of(stack.env).model_copy(update={"data_dir": directory / "data" / "test"})
            async with connect(stack, shared) as connections:
                with watching(stack, directory) as watched:
                    yield Shop(directory, connections, watched)


async def test_a_plan_that_helps_is_validated_and_one_that_harms_taken_back(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    async with shop(tmp_path) as here:
        await here.remember()
        analysis = await here.typed("analyze", ROLE)
        assert analysis["opened"], analysis

        async def are_drafted() -> bool:
            plans = (await here.typed("plans", "list", ROLE))["plans"]
            return len(plans) >= len(analysis["opened"])

        await eventually(are_drafted, WAIT_S)
        before = await here.serve(BATCH)
        assert set(before["refund"]) == {"failure"}

        harmful = await here.carry_out("exchange")
        assert harmful["state"] == "rolled_back", harmful
        assert harmful["verdict"].startswith("Taken back: ")

        helpful = await here.carry_out("refund")
        assert helpful["state"] == "validated", helpful
        assert helpful["effect"]["high"] < 0, helpful
        assert helpful["verdict"].startswith("Promoted. It helped")
        after = await here.serve(BATCH)
        assert set(after["refund"]) == {"success"}

        report = await here.typed("report", "learning", ROLE)
        assert (report["figures"]["plans_validated"], report["figures"]["plans_rolled_back"]) == (1, 1)
        with subtests.test("panels"):
            assert await here.watched.unlike(LEARNING) == []
